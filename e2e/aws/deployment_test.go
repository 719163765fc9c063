package aws

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// Where the templates are deployed to in these tests. It is not the partition that
// everybody tries first.
const (
	partition = "aws-us-gov"
	region    = "us-gov-west-1"
	account   = "111122223333"
	cluster   = "my-cluster"
)

// settings are what an operator chooses, by the same names for every template. The zero
// value leaves all to the defaults.
type settings struct {
	withoutRebalance bool
	withoutScheduled bool // scheduled events
	withoutStates    bool // state changes
	withoutTerminate bool // terminate hooks
	launchHooks      bool
	kmsKey           string
	alarmTopic       string
	credentials      string
	oidcProvider     string
	autoScaling      bool
	tagKey, tagValue string
	retention        int
	anybodySends     bool   // no denial of other senders
	senders          string // ARNs, separated by commas
	hookTopic        string
}

// A deployment is what a template asks AWS for.
type deployment struct {
	rules       map[string]rule // by name
	queue       sqsQueue
	deadLetters sqsQueue
	permissions []statement // all that the role may
	trust       []statement
	association map[string]string // of EKS Pod Identity: service account, role and so on
	alarms      []string          // metrics
	outputs     map[string]string
}

type rule struct {
	arn        string
	pattern    string // JSON
	target     string // ARN
	deadLetter string // ARN
	maxAge     int    // seconds
}

type sqsQueue struct {
	name, arn, url string
	retention      int // seconds
	visibility     int // seconds
	wait           int // seconds
	managedSSE     bool
	kmsKey         string
	redrive        redrivePolicy
	redriveAllow   redriveAllowPolicy
	policy         []statement
}

type redrivePolicy struct {
	Target          string `json:"deadLetterTargetArn"`
	MaxReceiveCount int    `json:"maxReceiveCount"`
}

type redriveAllowPolicy struct {
	Permission string   `json:"redrivePermission"`
	Sources    []string `json:"sourceQueueArns"`
}

// A statement of a policy document.
type statement struct {
	Sid       string                      `json:"Sid"`
	Effect    string                      `json:"Effect"`
	Principal any                         `json:"Principal"`
	Action    texts                       `json:"Action"`
	Resource  texts                       `json:"Resource"`
	Condition map[string]map[string]texts `json:"Condition"`
}

// texts is a string or an array of them: policies allow both.
type texts []string

func (t *texts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(t))
}

// statements reads a policy document, as text or as the value of a template.
func statements(document any) ([]statement, error) {
	text, isText := document.(string)
	if !isText {
		data, err := json.Marshal(document)
		if err != nil {
			return nil, fmt.Errorf("encode policy: %w", err)
		}
		text = string(data)
	}
	var policy struct {
		Version   string
		Statement []statement
	}
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		return nil, fmt.Errorf("parse policy %s: %w", text, err)
	}
	if policy.Version != "2012-10-17" { // the older one knows no policy variables
		return nil, fmt.Errorf("policy of version %q", policy.Version)
	}
	return policy.Statement, nil
}

// actions are those that the statements allow, sorted.
func actions(all []statement) []string {
	var list []string
	for _, s := range all {
		if s.Effect == "Allow" {
			list = append(list, s.Action...)
		}
	}
	slices.Sort(list)
	return list
}

// ways are the templates: each makes the same of the same settings.
var ways = map[string]func(*testing.T, settings) deployment{
	"cloudformation": cloudFormation,
	"terraform":      terraform,
}

// everyWay runs a test on what each template makes of the settings.
func everyWay(t *testing.T, s settings, test func(*testing.T, deployment)) {
	t.Helper()
	for name, deploy := range ways {
		t.Run(name, func(t *testing.T) { test(t, deploy(t, s)) })
	}
}

func arn(service, resource string) string {
	return fmt.Sprintf("arn:%s:%s:%s:%s:%s", partition, service, region, account, resource)
}

func roleARN(name string) string {
	return fmt.Sprintf("arn:%s:iam::%s:role/%s", partition, account, name)
}

func policyARN(name string) string {
	return fmt.Sprintf("arn:%s:iam::%s:policy/%s", partition, account, name)
}

func queueURL(name string) string {
	return fmt.Sprintf("https://sqs.%s.amazonaws.com/%s/%s", region, account, name)
}
