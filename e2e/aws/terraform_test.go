package aws

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

// terraform is what the Terraform module asks for.
func terraform(t *testing.T, s settings) deployment {
	t.Helper()
	m := readModule(t, variablesOf(s))
	queues := m.instances(t, "aws_sqs_queue")
	d := deployment{
		queue: moduleQueue(t, queues["queue"]), deadLetters: moduleQueue(t, queues["dead_letters"]),
		rules: map[string]rule{}, outputs: map[string]string{},
	}
	byURL := map[string]*sqsQueue{d.queue.url: &d.queue, d.deadLetters.url: &d.deadLetters}
	for _, p := range m.instances(t, "aws_sqs_queue_policy") {
		byURL[at(p, "queue_url")].policy = mustStatements(t, at(p, "policy"))
	}
	for _, p := range m.instances(t, "aws_sqs_queue_redrive_allow_policy") {
		decode(t, at(p, "redrive_allow_policy"), &byURL[at(p, "queue_url")].redriveAllow)
	}
	targets := m.instances(t, "aws_cloudwatch_event_target")
	for key, r := range m.instances(t, "aws_cloudwatch_event_rule") {
		target, ok := targets[key]
		if !ok || at(target, "rule") != at(r, "name") {
			t.Errorf("rule %s has no target", key)
			continue
		}
		for _, change := range []string{"input", "input_path", "input_transformer"} {
			if target.Type().HasAttribute(change) {
				t.Errorf("rule %s changes the message", key)
			}
		}
		d.rules[key] = rule{
			arn: at(r, "arn"), pattern: at(r, "event_pattern"), target: at(target, "arn"),
			deadLetter: at(target.GetAttr("dead_letter_config"), "arn"),
			maxAge:     count(target.GetAttr("retry_policy"), "maximum_event_age_in_seconds"),
		}
	}
	moduleRole(t, m, &d)
	for _, a := range m.instances(t, "aws_cloudwatch_metric_alarm") {
		d.alarms = append(d.alarms, at(a, "metric_name"))
	}
	for name, output := range m.outputs {
		if v := m.eval(t, output.Expr, nil); !v.IsNull() {
			d.outputs[name] = v.AsString()
		}
	}
	return d
}

// moduleRole fills in who may do what.
func moduleRole(t *testing.T, m *module, d *deployment) {
	t.Helper()
	documents := map[string]string{}
	for _, p := range m.instances(t, "aws_iam_policy") {
		documents[at(p, "arn")] = at(p, "policy")
	}
	roles := map[string]bool{}
	for _, r := range m.instances(t, "aws_iam_role") {
		roles[at(r, "name")] = true
		d.trust = append(d.trust, mustStatements(t, at(r, "assume_role_policy"))...)
	}
	for _, a := range m.instances(t, "aws_iam_role_policy_attachment") {
		document, ok := documents[at(a, "policy_arn")]
		if !ok || !roles[at(a, "role")] {
			t.Errorf("policy %s is attached to role %s: one of them is not made", at(a, "policy_arn"), at(a, "role"))
			continue
		}
		d.permissions = append(d.permissions, mustStatements(t, document)...)
	}
	for _, a := range m.instances(t, "aws_eks_pod_identity_association") {
		d.association = map[string]string{
			"cluster": at(a, "cluster_name"), "namespace": at(a, "namespace"),
			"service account": at(a, "service_account"), "role": at(a, "role_arn"),
		}
	}
}

// variablesOf are the settings in the module's words.
func variablesOf(s settings) map[string]cty.Value {
	v := map[string]cty.Value{"cluster_name": cty.StringVal(cluster)}
	for name, value := range map[string]string{
		"kms_key_arn": s.kmsKey, "alarm_topic_arn": s.alarmTopic, "credentials": s.credentials,
		"oidc_provider": s.oidcProvider, "tag_key": s.tagKey, "tag_value": s.tagValue,
		"hook_topic_arn": s.hookTopic,
	} {
		if value != "" {
			v[name] = cty.StringVal(value)
		}
	}
	for name, off := range map[string]bool{
		"rebalance_recommendations": s.withoutRebalance, "scheduled_events": s.withoutScheduled,
		"state_changes": s.withoutStates, "terminate_hooks": s.withoutTerminate,
		"deny_other_senders": s.anybodySends,
	} {
		if off {
			v[name] = cty.False
		}
	}
	if s.senders != "" {
		var list []cty.Value
		for _, sender := range strings.Split(s.senders, ",") {
			list = append(list, cty.StringVal(sender))
		}
		v["sender_arns"] = cty.ListVal(list)
	}
	if s.launchHooks {
		v["launch_hooks"] = cty.True
	}
	if s.autoScaling {
		v["auto_scaling_groups"] = cty.True
	}
	if s.retention != 0 {
		v["message_retention_seconds"] = cty.NumberIntVal(int64(s.retention))
	}
	return v
}

func moduleQueue(t *testing.T, v cty.Value) sqsQueue {
	t.Helper()
	q := sqsQueue{
		name: at(v, "name"), arn: at(v, "arn"), url: at(v, "url"), retention: count(v, "message_retention_seconds"),
		visibility: count(v, "visibility_timeout_seconds"), wait: count(v, "receive_wait_time_seconds"),
		kmsKey: at(v, "kms_master_key_id"),
	}
	sse := v.GetAttr("sqs_managed_sse_enabled")
	q.managedSSE = !sse.IsNull() && sse.True()
	decode(t, at(v, "redrive_policy"), &q.redrive)
	return q
}

// at is an attribute that is a text; empty where it is null or not there.
func at(v cty.Value, name string) string {
	if !v.Type().HasAttribute(name) || v.GetAttr(name).IsNull() {
		return ""
	}
	return v.GetAttr(name).AsString()
}

// count is an attribute that is a number; zero where it is not there.
func count(v cty.Value, name string) int {
	if !v.Type().HasAttribute(name) {
		return 0
	}
	n, _ := v.GetAttr(name).AsBigFloat().Int64()
	return int(n)
}

func decode(t *testing.T, from string, to any) {
	t.Helper()
	if from == "" {
		return
	}
	if err := json.Unmarshal([]byte(from), to); err != nil {
		t.Fatalf("%s: %v", from, err)
	}
}
