package imds

import (
	"strings"
	"time"

	"spot-handler/handler/interruption"
)

// stateTerminated is the state of an instance that its group is about to terminate. In all
// other states it goes on, or serves nobody, as in a warm pool (Warmed:Terminated too).
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const stateTerminated = "Terminated"

// parseLifecycleState reads autoscaling/target-lifecycle-state: one word, without times. An
// instance is terminated once, so the announcement keeps its name for as long as the
// instance lives.
func parseLifecycleState(body []byte, received time.Time) (announcement, error) {
	if strings.TrimSpace(string(body)) != stateTerminated {
		return announcement{}, nil
	}
	return announcement{name: stateTerminated, notice: interruption.Notice{
		Action: interruption.ActionTerminate, Noticed: received, Received: received,
	}}, nil
}
