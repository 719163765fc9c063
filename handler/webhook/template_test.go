package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"spot-handler/handler/notify"
)

func TestTemplate(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 2, 0, 0, time.UTC)
	m := Message{
		Event: notify.Notice, Description: "deadline 2026-01-01T12:02:00Z, in 118 s", Text: "a notice",
		NodeName: "ip-10-0-0-1.eu-west-1.compute.internal", NodeLabels: map[string]string{"team": "a"}, InstanceID: "i-0123456789abcdef0",
		Kind: "spot-interruption", EventID: "1", Deadline: &at, StartTime: at,
	}
	for name, tt := range map[string]struct{ template, want string }{
		"plain":     {`{"text": {{ .Text | toJson }}}`, `{"text": "a notice"}`},
		"sprig":     {`{"x": "{{ .NodeName | trunc 2 | upper }}", "y": {{ dict "k" .Kind | toJson }}}`, `{"x": "IP", "y": {"k":"spot-interruption"}}`},
		"condition": {`{"color": "{{ if eq .Event "notice" }}warning{{ else if gt .Pods.Left 0 }}danger{{ else }}good{{ end }}"}`, `{"color": "warning"}`},
		"labels":    {`"{{ index .NodeLabels "team" }}{{ .NodeLabels.absent }}{{ index .NodeLabels "none" }}"`, `"a"`},
		"time":      {`"{{ .StartTime | date "15:04" }} {{ with .Deadline }}{{ unixEpoch . }} {{ date "05" . }}{{ end }}"`, `"12:02 1767268920 00"`},
		"method":    {`"{{ .StartTime.Format "15:04" }}"`, `"12:02"`},
		"text within another": {`{"text": {{ printf "%s: %s" .NodeName .Description | toJson }}, "by": "{{ .Kind }} {{ .NodeName }}"}`,
			`{"text": "ip-10-0-0-1.eu-west-1.compute.internal: deadline 2026-01-01T12:02:00Z, in 118 s", "by": "spot-interruption ip-10-0-0-1.eu-west-1.compute.internal"}`},
		"other way to escape": {`{"text": {{ .Text | toRawJson }}, "id": {{ .EventID | quote }}}`, `{"text": "a notice", "id": "1"}`},
		// That of aws-node-termination-handler by default, with its texts escaped.
		"other handler's": {
			`{"text":{{ printf "[NTH][Instance Interruption] EventID: %s - Kind: %s - Instance: %s - Node: %s - Description: %s - Start Time: %s" .EventID .Kind .InstanceID .NodeName .Description .StartTime | toJson }}}`,
			`{"text":"[NTH][Instance Interruption] EventID: 1 - Kind: spot-interruption - Instance: i-0123456789abcdef0 - Node: ip-10-0-0-1.eu-west-1.compute.internal - Description: deadline 2026-01-01T12:02:00Z, in 118 s - Start Time: 2026-01-01 12:02:00 +0000 UTC"}`,
		},
	} {
		parsed, err := ParseTemplate(tt.template, http.Header{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := parsed.render(m); err != nil || string(got) != tt.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tt.want)
		}
	}
}

func TestTemplateRefused(t *testing.T) {
	plain := http.Header{"Content-Type": {"text/plain"}}
	for name, tt := range map[string]struct {
		template string
		header   http.Header
		says     string
	}{
		"syntax":                       {`{"text": {{ .Text }`, nil, "parse template"},
		"no such field":                {`{"text": "{{ .Txt }}"}`, nil, "Txt"},
		"the network":                  {`{"text": {{ getHostByName "example.com" | toJson }}}`, nil, `"getHostByName" not defined`},
		"a method of what can be nil":  {`"{{ .Deadline.Format "15:04" }}"`, nil, "using nil *Time pointer"},
		"no such function":             {`{{ tojson .Text }}`, nil, "tojson"},
		"field of an outcome only":     {`{{ if eq .Event "outcome" }}{{ .Pods.Lost }}{{ end }}`, plain, "Lost"},
		"a notice without a deadline":  {`{{ if not .Deadline }}{{ fail "no deadline" }}{{ end }}`, plain, "no deadline"},
		"text as it is":                {"{\n\"a\": {{ .Text | toJson }},\n\"b\": \"{{ .Text }}\"}", nil, "line 3 of the template puts .Text"},
		"escaped in part":              {`{"text": "{{ .Description | replace "\"" "'" }}"}`, nil, "write {{ .Description | toJson }}"},
		"for scripts":                  {`{"text": "{{ .Text | js }}"}`, nil, "line 1 of the template puts .Text"},
		"one that a kubelet can write": {"{\"text\":\n\"{{ with .Replacement }}{{ .Reason }}{{ end }}\"}", nil, "line 2 of the template puts .Replacement.Reason"},
		"beside one that is escaped":   {"{\n\"a\": {{ .Text | toJson }}, \"b\": \"{{ .Text }}\"}", nil, "line 2 of the template puts .Text"},
		"of a budget, on one branch":   {`{"text": "{{ if eq .Event "outcome" }}{{ .Pods.Refusal }}{{ end }}"}`, nil, ".Pods.Refusal | toJson"},
		"no JSON":                      {`hello {{ .Text }}`, nil, "toJson"},
		"no JSON where that was meant": {`{"text": {{ .Text }}}`, http.Header{"Content-Type": {"application/json; charset=utf-8"}}, "toJson"},
	} {
		if _, err := ParseTemplate(tt.template, tt.header); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tt.says)
		}
	}
	if _, err := ParseTemplate(`"{{ .Text }}"`, plain); err != nil {
		t.Errorf("plain text: %v", err)
	}
}
