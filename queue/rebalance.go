package queue

import (
	"time"

	"spot-handler/handler/interruption"
)

// parseRebalance reads an "EC2 Instance Rebalance Recommendation", which has no
// deadline.
func parseRebalance(e envelope, received time.Time) ([]interruption.Notice, error) {
	_, instance, err := e.instanceDetail()
	if err != nil {
		return nil, err
	}
	return []interruption.Notice{e.notice(interruption.RebalanceRecommendation, instance, received)}, nil
}
