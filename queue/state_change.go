package queue

import (
	"time"

	"spot-handler/handler/interruption"
)

// parseStateChange reads an "EC2 Instance State-change Notification". What it reports has
// begun, or is over, at the time of the message: that is the deadline. An instance that
// starts needs no action.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
func parseStateChange(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, instance, err := e.instanceDetail()
	if err != nil {
		return nil, err
	}
	state, err := textField(detail, "state")
	if err != nil {
		return nil, err
	}
	switch state {
	case interruption.ActionStopping, interruption.ActionShuttingDown, interruption.ActionStopped, interruption.ActionTerminated:
	case "pending", "running":
		return nil, nil
	default:
		return nil, unsupported(rejectState, "state %.64q", state)
	}
	n := e.notice(interruption.StateChange, instance, received)
	n.Action, n.Deadline = state, n.Noticed
	return []interruption.Notice{n}, nil
}
