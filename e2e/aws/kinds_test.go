package aws

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// A kind of message that an EventBridge rule can be for.
type kind struct {
	detailType, source string

	// pattern is the rule's, as it stands in both templates: the narrowest that loses no
	// message of use.
	pattern string

	// optIn: the rule is made only where the operator asks for it.
	optIn bool

	// In testdata/events: messages of the kind that the daemon has a use for, and such
	// that it has none for.
	wanted, unwanted []string
}

// kinds are those that the daemon parses. A kind that is new in package
// queue fails TestRulesAreWhatTheDaemonParses until it is here and has its rule in
//
//   - deploy/cloudformation: the rule, its parameter and condition, and its ARN in the
//     policies of both queues;
//   - deploy/terraform: an entry of local.kinds, and its variable;
//   - deploy/aws.md: the rows of its parameter and of its rule.
//
// What its handling calls of AWS fails TestActionsAreWhatTheCodeCalls in the same way.
var kinds = []kind{
	{
		detailType: "EC2 Spot Instance Interruption Warning", source: "aws.ec2",
		pattern: `{"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}`,
		wanted:  []string{"spot_interruption.json", "spot_interruption_hibernate.json"},
	},
	{
		detailType: "EC2 Instance Rebalance Recommendation", source: "aws.ec2",
		pattern: `{"source": ["aws.ec2"], "detail-type": ["EC2 Instance Rebalance Recommendation"]}`,
		wanted:  []string{"rebalance.json"},
	},
	{
		// An instance that starts is nobody's concern here.
		detailType: "EC2 Instance State-change Notification", source: "aws.ec2",
		pattern: `{"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"],
			"detail": {"state": ["stopping", "stopped", "shutting-down", "terminated"]}}`,
		wanted:   []string{"state_change_stopping.json", "state_change_terminated.json"},
		unwanted: []string{"state_change_pending.json", "state_change_running.json"},
	},
	{
		detailType: "EC2 Capacity Reservation Instance Interruption Warning", source: "aws.ec2",
		pattern: `{"source": ["aws.ec2"], "detail-type": ["EC2 Capacity Reservation Instance Interruption Warning"]}`,
		wanted:  []string{"capacity_reservation.json"},
	},
	{
		detailType: "Capacity Block Expiration Warning", source: "aws.ec2",
		pattern:  `{"source": ["aws.ec2"], "detail-type": ["Capacity Block Expiration Warning"]}`,
		wanted:   []string{"capacity_block.json"},
		unwanted: []string{"capacity_block_delivered.json"},
	},
	{
		detailType: "Capacity Block Reservation Expiration Warning", source: "aws.ec2",
		pattern: `{"source": ["aws.ec2"], "detail-type": ["Capacity Block Reservation Expiration Warning"]}`,
		wanted:  []string{"capacity_block_reservation.json"},
	},
	{
		detailType: "EC2 Instance-terminate Lifecycle Action", source: "aws.autoscaling",
		pattern: `{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"]}`,
		wanted:  []string{"lifecycle_terminate.json"},
	},
	{
		// Not everybody's hooks wait for a Node: somebody else may have to complete them.
		detailType: "EC2 Instance-launch Lifecycle Action", source: "aws.autoscaling",
		pattern: `{"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-launch Lifecycle Action"]}`,
		wanted:  []string{"lifecycle_launch.json"}, optIn: true,
	},
	{
		detailType: "AWS Health Event", source: "aws.health",
		pattern: `{"source": ["aws.health"], "detail-type": ["AWS Health Event"],
			"detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]}}`,
		wanted:   []string{"health_scheduled_change.json"},
		unwanted: []string{"health_issue.json", "health_rds.json"},
	},
}

// foreign are messages that no rule may match: other events of the same services, and the
// words of EC2 in the mouth of somebody else.
var foreign = []string{
	"other_detail_type.json", "other_source.json", "capacity_reclaimed.json",
}

// sample reads a message.
func sample(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "events", name))
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) {
		t.Fatalf("%s is not JSON", name)
	}
	return text
}
