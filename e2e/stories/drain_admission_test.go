package stories

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// A policy of the cluster denies the eviction of some pods. They count as blocked, in the
// policy's own words, and the others go.
func TestEvictionsThatAreDenied(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	kept := s.service("kept", 2, func(d *controlplane.DeploymentSpec) { quick(d); d.MaxSurge = never })
	free := s.service("free", 2, quick)
	s.bare("spare", 1, 8)
	const words = "the shards are moved first"
	s.deny(admissionregistrationv1.Create, "pods/eviction", "request.name.startsWith('kept-')", words)
	s.eventually("denial of evictions", func() bool {
		err := s.evictionWouldBe(kept[0].Name)
		return apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
	})
	d, queue := s.drill()

	interrupt(queue, node.Name, 40*time.Second)
	for _, p := range kept {
		s.eventually("Event on a blocked pod", func() bool { return len(s.events("EvictionBlocked", p.Name)) == 1 })
		if event := s.events("EvictionBlocked", p.Name)[0]; !strings.Contains(event.Message, words) {
			t.Errorf("the Event says %q, want the policy's %q", event.Message, words)
		}
	}
	if n := s.metric(d, "spot_handler_blocked_pods"); n != 2 {
		t.Errorf("%v pods counted as blocked, want 2", n)
	}
	line := s.wantResults(d, map[string]result{node.Name: {graceful: 2, left: 2}})[node.Name]
	if reason, _ := line["reason"].(string); !strings.Contains(reason, words) {
		t.Errorf("want the reason why pods were left: %v", line)
	}
	s.wantEachOnce(uids(free))
}

// An admission webhook hangs for the evictions of more pods than there are requests at once,
// and these are the most urgent. The pods of another node leave all the same, and when the
// webhook answers again, so do the others.
func TestAnAdmissionWebhookHangs(t *testing.T) {
	s := newStoryApart(t, controlplane.Options{Audit: true})
	interrupted := s.bare("node", 1, 8)[0]
	slow := s.service("slow", 40, func(d *controlplane.DeploymentSpec) { quick(d); d.CPU, d.MaxSurge = "200m", never })
	other := s.bare("other", 1, 8)[0]
	free := s.service("free", 4, func(d *controlplane.DeploymentSpec) { quick(d); d.MaxSurge = never })
	s.bare("spare", 2, 8)
	hook := s.hangingWebhook("request.name.startsWith('slow-')")
	s.eventually("hanging of evictions", func() bool {
		_ = s.evictionWouldBe(slow[0].Name)
		asked, _ := hook.seen()
		return asked > 0
	})
	hook.forget()
	d, queue := s.drill()

	interrupt(queue, interrupted.Name, 100*time.Second)
	s.eventually("evictions that hang", func() bool { asked, _ := hook.seen(); return asked >= 32 })
	interrupt(queue, other.Name, 110*time.Second)
	s.eventually("departure of the others", func() bool { return len(s.podsOn(other.Name, "free")) == 0 })
	s.eventually("an eviction that is broken off", func() bool { _, brokenOff := hook.seen(); return !brokenOff.IsZero() })
	_, brokenOff := hook.seen()
	for _, r := range s.evicted() {
		if !before(t, d, other.Name, brokenOff.Add(-5*time.Second)) { // a stall: their drain begins no sooner
			break
		}
		if late := r.RequestReceivedTimestamp.Sub(brokenOff); late > 0 {
			t.Errorf("pod %s was evicted %s after the first eviction that hung was given up, want it before", r.ObjectRef.Name, late)
		}
	}
	hook.answer()
	s.wantResults(d, map[string]result{interrupted.Name: {graceful: 40}, other.Name: {graceful: 4}})
	s.wantEachOnce(uids(append(slow, free...)))
}

// before reports whether the drain of the node had begun at a time.
func before(t *testing.T, d *daemon.Daemon, node string, at time.Time) bool {
	for _, line := range d.Lines("draining") {
		text, _ := line["time"].(string)
		began, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		if line["node"] == node {
			return began.Before(at)
		}
	}
	return false
}

// evictionWouldBe is the answer to an eviction that would be made now, within a short time.
func (s *story) evictionWouldBe(pod string) error {
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	return s.cluster.Client.PolicyV1().Evictions("default").Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
}

// deny has the API server refuse what the expression is true for, a moment later.
func (s *story) deny(operation admissionregistrationv1.OperationType, resource, expression, words string) {
	s.Helper()
	policies := s.cluster.Client.AdmissionregistrationV1()
	fail := admissionregistrationv1.Fail
	_, err := policies.ValidatingAdmissionPolicies().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "denied"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: onPods(operation, resource),
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: "!(" + expression + ")", Message: words}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(s.ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "denied"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "denied", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

func onPods(operation admissionregistrationv1.OperationType, resource string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{operation},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// hangingWebhook is an admission webhook for evictions, which leaves them without an answer.
type hangingWebhook struct {
	answers chan struct{} // closed when it answers
	answer  func()

	underway sync.WaitGroup

	mu        sync.Mutex
	asked     int
	brokenOff time.Time // when the first caller had waited long enough
}

// seen is how often it was asked, and when the first caller gave up.
func (h *hangingWebhook) seen() (asked int, brokenOff time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked, h.brokenOff
}

// forget waits for the end of what was asked so far, and counts from none again.
func (h *hangingWebhook) forget() {
	h.underway.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.brokenOff = 0, time.Time{}
}

func (h *hangingWebhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no AdmissionReview", http.StatusBadRequest)
		return
	}
	h.underway.Add(1)
	defer h.underway.Done()
	h.mu.Lock()
	h.asked++
	h.mu.Unlock()
	select {
	case <-h.answers:
	case <-r.Context().Done():
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.brokenOff.IsZero() {
			h.brokenOff = time.Now()
		}
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// hangingWebhook registers one for the evictions that the expression is true for. The API
// server asks it a moment later.
func (s *story) hangingWebhook(expression string) *hangingWebhook {
	s.Helper()
	h := &hangingWebhook{answers: make(chan struct{})}
	h.answer = sync.OnceFunc(func() { close(h.answers) })
	server := httptest.NewTLSServer(h)
	s.Cleanup(func() { h.answer(); server.Close() })
	fail, none, seconds := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(30)
	_, err := s.cluster.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(s.ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hangs"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hangs.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules:                   []admissionregistrationv1.RuleWithOperations{onPods(admissionregistrationv1.Create, "pods/eviction")},
			MatchConditions:         []admissionregistrationv1.MatchCondition{{Name: "these", Expression: expression}},
			FailurePolicy:           &fail,
			SideEffects:             &none,
			TimeoutSeconds:          &seconds,
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	s.must(err)
	return h
}
