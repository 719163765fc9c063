package queue

import (
	"time"

	"spot-handler/handler/interruption"
)

// parseRebalance reads an "EC2 Instance Rebalance Recommendation", which has no
// deadline.
func parseRebalance(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, err := e.detailFields()
	if err != nil {
		return nil, err
	}
	instance, err := instanceField(detail, "instance-id")
	if err != nil {
		return nil, err
	}
	return []interruption.Notice{e.notice(interruption.RebalanceRecommendation, instance, received)}, nil
}
