package imds

import (
	"strings"
	"time"

	"spot-handler/handler/interruption"
)

// stateTerminated is the state of an instance that its group is about to terminate. All
// other states, those of a warm pool (Warmed:Terminated too) and those that AWS has yet to
// think of, are of instances that go on or that serve nobody.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
const stateTerminated = "Terminated"

// parseLifecycleState reads autoscaling/target-lifecycle-state: one word. It says neither
// since when nor until when, and an instance is terminated once: the announcement has the
// same name for as long as the instance lives.
func parseLifecycleState(body []byte, received time.Time) (announcement, error) {
	if strings.TrimSpace(string(body)) != stateTerminated {
		return announcement{}, nil
	}
	return announcement{name: stateTerminated, notice: interruption.Notice{
		Action: interruption.ActionTerminate, Noticed: received, Received: received,
	}}, nil
}
