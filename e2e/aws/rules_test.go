package aws

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"quamina.net/go/quamina"
)

// matching are the names of the rules whose patterns match the message.
func matching(t *testing.T, rules map[string]rule, message []byte) []string {
	t.Helper()
	q, err := quamina.New()
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range rules {
		if err := q.AddPattern(name, r.pattern); err != nil {
			t.Fatalf("rule %s: %v", name, err)
		}
	}
	found, err := q.MatchesForEvent(message)
	if err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	var names []string
	for _, x := range found {
		names = append(names, x.(string))
	}
	slices.Sort(names)
	return names
}

// Every kind that package queue parses has one rule, with the pattern of the table, and
// there is no rule for anything else; those that are asked for come on top.
func TestRulesAreWhatTheDaemonParses(t *testing.T) {
	parsed := handled(t)
	var always, asked []string
	for detailType, source := range parsed {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.detailType == detailType && k.source == source })
		if i < 0 {
			t.Errorf("package queue parses %q of %s: add it to kinds, with samples", detailType, source)
			continue
		}
		if asked = append(asked, canonical(t, kinds[i].pattern)); !kinds[i].optIn {
			always = append(always, canonical(t, kinds[i].pattern))
		}
	}
	for s, want := range map[settings][]string{{}: always, {launchHooks: true}: asked} {
		slices.Sort(want)
		everyWay(t, s, func(t *testing.T, d deployment) {
			var got []string
			for _, r := range d.rules {
				got = append(got, canonical(t, r.pattern))
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("patterns (-parsed by the daemon +rules):\n%s", diff)
			}
		})
	}
}

// canonical is the same JSON in one spelling.
func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The rules match the sample messages that the daemon has a use for, each by exactly one
// rule, and no others: not those of kinds that it does not parse.
func TestRulesMatchTheSamplesAndNoOthers(t *testing.T) {
	parsed := handled(t)
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		for _, k := range kinds {
			_, use := parsed[k.detailType]
			use = use && !k.optIn
			for _, name := range k.wanted {
				want := 0
				if use {
					want = 1
				}
				if got := matching(t, d.rules, sample(t, name)); len(got) != want {
					t.Errorf("%s is matched by the rules %v, want %d", name, got, want)
				}
			}
			for _, name := range k.unwanted {
				if got := matching(t, d.rules, sample(t, name)); len(got) != 0 {
					t.Errorf("%s is matched by the rules %v", name, got)
				}
			}
		}
		for _, name := range foreign {
			if got := matching(t, d.rules, sample(t, name)); len(got) != 0 {
				t.Errorf("%s is matched by the rules %v", name, got)
			}
		}
	})
}

// The patterns of the table are right also for the kinds that no template has yet.
func TestPatternsOfEveryKind(t *testing.T) {
	all := map[string]rule{}
	for _, k := range kinds {
		all[k.detailType] = rule{pattern: k.pattern}
	}
	seen := map[string]bool{}
	for _, k := range kinds {
		if len(k.wanted) == 0 {
			t.Errorf("%s has no sample", k.detailType)
		}
		for _, name := range k.wanted {
			seen[name] = true
			if got := matching(t, all, sample(t, name)); !slices.Equal(got, []string{k.detailType}) {
				t.Errorf("%s is matched by the patterns of %v, want %s", name, got, k.detailType)
			}
		}
		for _, name := range k.unwanted {
			seen[name] = true
			if got := matching(t, all, sample(t, name)); len(got) != 0 {
				t.Errorf("%s is matched by the patterns of %v", name, got)
			}
		}
	}
	for _, name := range foreign {
		seen[name] = true
		if got := matching(t, all, sample(t, name)); len(got) != 0 {
			t.Errorf("%s is matched by the patterns of %v", name, got)
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "events", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !seen[filepath.Base(file)] {
			t.Errorf("%s is no test's", file)
		}
	}
}

// The daemon's own samples, too: what its parsers are tested with arrives, and what they
// call unsupported does not. Malformed ones are matched by source and detail-type alone,
// as a rule does it.
func TestRulesAndTheParsersSamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "queue", "testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("package queue has no samples: %v", err)
	}
	parsed := handled(t)
	tried := map[string]bool{}
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		for _, file := range files {
			message, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var head struct {
				DetailType string `json:"detail-type"`
				Source     string `json:"source"`
			}
			if json.Unmarshal(message, &head) != nil || head.DetailType == "" {
				continue // no envelope: EventBridge sends none such
			}
			tried[head.DetailType] = true
			want := 0
			if i := slices.IndexFunc(kinds, func(k kind) bool { return k.detailType == head.DetailType }); i >= 0 && parsed[head.DetailType] == head.Source && !kinds[i].optIn {
				want = len(matching(t, map[string]rule{"it": {pattern: kinds[i].pattern}}, message))
			}
			if got := matching(t, d.rules, message); len(got) != want {
				t.Errorf("%s is matched by the rules %v, want %d", filepath.Base(file), got, want)
			}
		}
	})
	for detailType := range parsed {
		if !tried[detailType] {
			t.Errorf("package queue has no sample of %q", detailType)
		}
	}
}

// A kind that is switched off has no rule, and the others keep theirs.
func TestOptionalRules(t *testing.T) {
	for s, off := range map[settings]string{
		{withoutRebalance: true}: "rebalance.json",
		{withoutScheduled: true}: "health_scheduled_change.json",
		{withoutStates: true}:    "state_change_stopping.json",
		{withoutTerminate: true}: "lifecycle_terminate.json",
		{}:                       "lifecycle_launch.json",
	} {
		everyWay(t, s, func(t *testing.T, d deployment) {
			for _, k := range kinds {
				want := 1
				if k.wanted[0] == off || k.optIn {
					want = 0
				}
				if got := matching(t, d.rules, sample(t, k.wanted[0])); len(got) != want {
					t.Errorf("%s is matched by %v without %s, want %d", k.wanted[0], got, off, want)
				}
			}
		})
	}
}

// fewest is with all switched off that can be.
var fewest = settings{withoutRebalance: true, withoutScheduled: true, withoutStates: true, withoutTerminate: true}

// Every rule sends to the queue, and what it cannot send in time to the other; nobody
// else may send, and each only without a break in TLS.
func TestRulesMaySend(t *testing.T) {
	for _, s := range []settings{{}, fewest, {launchHooks: true}, {retention: 900}} {
		everyWay(t, s, func(t *testing.T, d deployment) {
			var arns []string
			for name, r := range d.rules {
				arns = append(arns, r.arn)
				if r.target != d.queue.arn || r.deadLetter != d.deadLetters.arn {
					t.Errorf("rule %s sends to %s and else to %s", name, r.target, r.deadLetter)
				}
				if r.maxAge != d.queue.retention {
					t.Errorf("rule %s tries for %d s, want the %d s that the queue keeps messages", name, r.maxAge, d.queue.retention)
				}
			}
			slices.Sort(arns)
			for _, q := range []sqsQueue{d.queue, d.deadLetters} {
				checkQueuePolicy(t, q, arns, q.name == d.queue.name)
			}
		})
	}
}

// checkQueuePolicy wants only the rules to send, and over TLS. What denies others is of the queue
// alone: SQS itself moves messages to the other, and nobody acts on what is there.
func checkQueuePolicy(t *testing.T, q sqsQueue, rules []string, denies bool) {
	t.Helper()
	want := []statement{
		{
			Sid: "RulesSend", Effect: "Allow", Principal: map[string]any{"Service": "events.amazonaws.com"},
			Action: texts{"sqs:SendMessage"}, Resource: texts{q.arn},
			Condition: map[string]map[string]texts{"ArnEquals": {"aws:SourceArn": rules}},
		},
		{
			Sid: "NobodyWithoutTLS", Effect: "Deny", Principal: "*", Action: texts{"sqs:*"}, Resource: texts{q.arn},
			Condition: map[string]map[string]texts{"Bool": {"aws:SecureTransport": {"false"}}},
		},
	}
	if denies {
		want = append(want, statement{
			Sid: "NobodyElseSends", Effect: "Deny", Principal: "*", Action: texts{"sqs:SendMessage"}, Resource: texts{q.arn},
			Condition: map[string]map[string]texts{"StringNotEquals": {"aws:PrincipalServiceName": {"events.amazonaws.com"}}},
		})
	}
	if len(q.policy) > 0 {
		slices.Sort(q.policy[0].Condition["ArnEquals"]["aws:SourceArn"])
	}
	if diff := cmp.Diff(want, q.policy); diff != "" {
		t.Errorf("policy of %s (-want +got):\n%s", q.name, diff)
	}
}

// Who else may send is let through by both statements: that which denies, and for a topic, which has
// no policy of its own, that which allows.
func TestOtherSenders(t *testing.T) {
	const hooks, person, topic = "arn:aws-us-gov:iam::111122223333:role/hooks", "arn:aws-us-gov:iam::111122223333:role/admin-*", "arn:aws-us-gov:sns:us-gov-west-1:111122223333:hooks"
	for _, tt := range []struct {
		settings
		services, arns, allowed []string
	}{
		{settings{}, []string{"events.amazonaws.com"}, nil, nil},
		{settings{senders: hooks}, []string{"events.amazonaws.com"}, []string{hooks}, nil},
		{settings{senders: hooks + "," + person, hookTopic: topic}, []string{"events.amazonaws.com", "sns.amazonaws.com"}, []string{hooks, person}, []string{topic}},
		{settings{anybodySends: true, hookTopic: topic}, nil, nil, []string{topic}},
		{settings{anybodySends: true}, nil, nil, nil},
	} {
		everyWay(t, tt.settings, func(t *testing.T, d deployment) {
			var services, arns, allowed []string
			for _, s := range d.queue.policy {
				switch s.Sid {
				case "NobodyElseSends":
					services, arns = s.Condition["StringNotEquals"]["aws:PrincipalServiceName"], s.Condition["ArnNotLike"]["aws:PrincipalArn"]
					if s.Effect != "Deny" || s.Principal != "*" || len(s.Condition) != 1+min(1, len(tt.arns)) {
						t.Errorf("%+v denies %+v", tt.settings, s)
					}
				case "HookTopicSends":
					allowed = s.Condition["ArnEquals"]["aws:SourceArn"]
					if who, _ := s.Principal.(map[string]any); s.Effect != "Allow" || who["Service"] != "sns.amazonaws.com" || len(s.Condition) != 1 {
						t.Errorf("%+v allows %+v", tt.settings, s)
					}
				}
			}
			if diff := cmp.Diff([][]string{tt.services, tt.arns, tt.allowed}, [][]string{services, arns, allowed}); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", tt.settings, diff)
			}
			if len(d.deadLetters.policy) != 2 {
				t.Errorf("%+v: dead letters have %+v", tt.settings, d.deadLetters.policy)
			}
		})
	}
}

// Both templates make the same rules.
func TestTemplatesAgreeOnRules(t *testing.T) {
	patterns := func(d deployment) []string {
		var list []string
		for r := range maps.Values(d.rules) {
			list = append(list, canonical(t, r.pattern))
		}
		slices.Sort(list)
		return list
	}
	for _, s := range []settings{{}, {withoutRebalance: true}, fewest, {launchHooks: true}} {
		if diff := cmp.Diff(patterns(cloudFormation(t, s)), patterns(terraform(t, s))); diff != "" {
			t.Errorf("%+v (-cloudformation +terraform):\n%s", s, diff)
		}
	}
}
