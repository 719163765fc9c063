package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The table is what Karpenter 1.14.1's own function says; see DoNotDisruptActive.
func TestDoNotDisrupt(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	anHourAgo := metav1.NewTime(now.Add(-time.Hour))
	for name, tt := range map[string]struct {
		value   string
		started *metav1.Time
		active  bool
		until   time.Time
	}{
		"true":                  {"true", &anHourAgo, true, time.Time{}},
		"false":                 {"false", &anHourAgo, false, time.Time{}},
		"empty":                 {"", &anHourAgo, false, time.Time{}},
		"nonsense":              {"tomorrow", &anHourAgo, false, time.Time{}},
		"zero":                  {"0s", &anHourAgo, false, time.Time{}},
		"negative":              {"-1h", &anHourAgo, false, time.Time{}},
		"not over":              {"2h", &anHourAgo, true, now.Add(time.Hour)},
		"over at this moment":   {"1h", &anHourAgo, false, now},
		"over":                  {"30m", &anHourAgo, false, now.Add(-30 * time.Minute)},
		"has not started":       {"30m", nil, true, time.Time{}},
		"true, has not started": {"true", nil, true, time.Time{}},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{StartTime: tt.started}}
		pod.Annotations = map[string]string{DoNotDisrupt: tt.value}
		if until, active := DoNotDisruptActive(pod, now); active != tt.active || !until.Equal(tt.until) {
			t.Errorf("%s: %v until %s, want %v until %s", name, active, until, tt.active, tt.until)
		}
	}
	if _, active := DoNotDisruptActive(&corev1.Pod{}, now); active {
		t.Error("a pod without the annotation is protected")
	}
}
