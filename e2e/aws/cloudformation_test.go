package aws

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
)

// cloudFormation is what the CloudFormation template asks for.
func cloudFormation(t *testing.T, s settings) deployment {
	t.Helper()
	c := readTemplate(t, parametersOf(s))
	d := deployment{rules: map[string]rule{}, outputs: map[string]string{}}
	policies := map[string]any{} // documents by ARN
	var attached []any
	for _, r := range c.resources(t) {
		p := r.properties
		switch r.kind {
		case "AWS::SQS::Queue":
			*d.queueOf(r.logical == "DeadLetterQueue") = templateQueue(t, p, d.queueOf(r.logical == "DeadLetterQueue").policy)
		case "AWS::SQS::QueuePolicy":
			d.queueOf(r.logical == "DeadLetterQueuePolicy").policy = mustStatements(t, p["PolicyDocument"])
		case "AWS::Events::Rule":
			d.rules[r.logical] = templateRule(t, r)
		case "AWS::IAM::ManagedPolicy":
			policies[policyARN("stack-"+r.logical)] = p["PolicyDocument"]
		case "AWS::IAM::Role":
			d.trust = mustStatements(t, p["AssumeRolePolicyDocument"])
			attached = p["ManagedPolicyArns"].([]any)
		case "AWS::EKS::PodIdentityAssociation":
			d.association = map[string]string{
				"cluster": text(p["ClusterName"]), "namespace": text(p["Namespace"]),
				"service account": text(p["ServiceAccount"]), "role": text(p["RoleArn"]),
			}
		case "AWS::CloudWatch::Alarm":
			d.alarms = append(d.alarms, text(p["MetricName"]))
		default:
			t.Errorf("no test knows resources of type %s", r.kind)
		}
	}
	for _, name := range attached {
		document, ok := policies[text(name)]
		if !ok {
			t.Errorf("the role has policy %s, which nobody makes", name)
			continue
		}
		d.permissions = append(d.permissions, mustStatements(t, document)...)
	}
	for name, o := range fields(child(c.root, "Outputs")) {
		if condition := child(o, "Condition"); condition != nil && !c.conditions[condition.Value] {
			continue
		}
		v, _, err := c.value(child(o, "Value"))
		if err != nil {
			t.Fatalf("output %s: %v", name, err)
		}
		d.outputs[name] = text(v)
	}
	return d
}

// parametersOf are the settings in the template's words.
func parametersOf(s settings) map[string]string {
	p := map[string]string{"ClusterName": cluster}
	for name, value := range map[string]string{
		"KmsKeyArn": s.kmsKey, "AlarmTopicArn": s.alarmTopic, "Credentials": s.credentials,
		"OidcProvider": s.oidcProvider, "TagKey": s.tagKey, "TagValue": s.tagValue,
		"SenderArns": s.senders, "HookTopicArn": s.hookTopic,
	} {
		if value != "" {
			p[name] = value
		}
	}
	for name, off := range map[string]bool{
		"RebalanceRecommendations": s.withoutRebalance, "ScheduledEvents": s.withoutScheduled,
		"StateChanges": s.withoutStates, "TerminateHooks": s.withoutTerminate,
		"DenyOtherSenders": s.anybodySends,
	} {
		if off {
			p[name] = "false"
		}
	}
	if s.launchHooks {
		p["LaunchHooks"] = "true"
	}
	if s.autoScaling {
		p["AutoScalingGroups"] = "true"
	}
	if s.retention != 0 {
		p["MessageRetentionSeconds"] = strconv.Itoa(s.retention)
	}
	return p
}

func (d *deployment) queueOf(deadLetters bool) *sqsQueue {
	if deadLetters {
		return &d.deadLetters
	}
	return &d.queue
}

func templateQueue(t *testing.T, p map[string]any, policy []statement) sqsQueue {
	t.Helper()
	name := text(p["QueueName"])
	q := sqsQueue{
		name: name, arn: arn("sqs", name), url: queueURL(name), policy: policy,
		retention: number(p["MessageRetentionPeriod"]), visibility: number(p["VisibilityTimeout"]),
		wait: number(p["ReceiveMessageWaitTimeSeconds"]), kmsKey: text(p["KmsMasterKeyId"]),
	}
	q.managedSSE, _ = p["SqsManagedSseEnabled"].(bool)
	recode(t, p["RedrivePolicy"], &q.redrive)
	recode(t, p["RedriveAllowPolicy"], &q.redriveAllow)
	return q
}

func templateRule(t *testing.T, r made) rule {
	t.Helper()
	var p struct {
		EventPattern json.RawMessage
		Targets      []struct {
			ID               string `json:"Id"`
			Arn              string
			DeadLetterConfig struct{ Arn string }
			RetryPolicy      struct {
				MaximumEventAgeInSeconds json.Number
				MaximumRetryAttempts     int
			}
			InputTransformer, Input, InputPath any // the daemon wants the whole message
		}
	}
	recode(t, r.properties, &p)
	if len(p.Targets) != 1 {
		t.Fatalf("rule %s has %d targets", r.logical, len(p.Targets))
	}
	target := p.Targets[0]
	if target.InputTransformer != nil || target.Input != nil || target.InputPath != nil {
		t.Errorf("rule %s changes the message", r.logical)
	}
	age, err := strconv.Atoi(target.RetryPolicy.MaximumEventAgeInSeconds.String())
	if err != nil {
		t.Fatal(err)
	}
	return rule{
		arn: arn("events", "rule/stack-"+r.logical), pattern: string(p.EventPattern),
		target: target.Arn, deadLetter: target.DeadLetterConfig.Arn, maxAge: age,
	}
}

func mustStatements(t *testing.T, document any) []statement {
	t.Helper()
	s, err := statements(document)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recode moves a value of a template into a struct.
func recode(t *testing.T, from, to any) {
	t.Helper()
	if from == nil {
		return
	}
	data, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

func number(v any) int {
	n, err := strconv.Atoi(text(v))
	if err != nil {
		return 0
	}
	return n
}
