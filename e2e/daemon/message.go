package daemon

import (
	"encoding/json"
	"time"
)

// The detail types of EventBridge that EventBridge is used with.
const (
	SpotInterruption = "EC2 Spot Instance Interruption Warning"
	Rebalance        = "EC2 Instance Rebalance Recommendation"
)

// EventBridge is the body that EventBridge puts in the queue for one instance.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html#ec2-spot-instance-interruption-warning-event
func EventBridge(detailType, eventID, instanceID string, at time.Time) string {
	detail := map[string]string{"instance-id": instanceID}
	if detailType == SpotInterruption {
		detail["instance-action"] = "terminate"
	}
	body, err := json.Marshal(map[string]any{
		"version": "0", "id": eventID, "detail-type": detailType, "source": "aws.ec2", "account": "123456789012",
		"time": at.UTC().Format(time.RFC3339), "region": "eu-west-1",
		"resources": []string{"arn:aws:ec2:eu-west-1a:instance/" + instanceID}, "detail": detail,
	})
	if err != nil { // strings only: cannot happen
		panic(err)
	}
	return string(body)
}
