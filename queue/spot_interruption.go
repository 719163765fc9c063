package queue

import (
	"encoding/json"
	"time"

	"spot-handler/handler/interruption"
)

// spotLead is how long after the announcement EC2 acts. The message itself has no time for
// it.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const spotLead = 120 * time.Second

// parseSpotInterruption reads an "EC2 Spot Instance Interruption Warning".
func parseSpotInterruption(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, instance, err := e.instanceDetail()
	if err != nil {
		return nil, err
	}
	action, err := actionField(detail)
	if err != nil {
		return nil, err
	}

	n := e.notice(interruption.SpotInterruption, instance, received)
	n.Action = action
	n.Deadline = e.time.Add(spotLead)
	if action == interruption.ActionHibernate { // begins at once, without the two minutes
		n.Deadline = received
	}
	return []interruption.Notice{n}, nil
}

// actionField returns what EC2 is about to do to the instance.
//
// An action that EC2 does not document counts as a termination: the message says that the
// instance is interrupted, whatever the word for it. Moving pods for nothing costs less than
// losing them.
func actionField(detail map[string]json.RawMessage) (string, error) {
	action, err := textField(detail, "instance-action")
	if err != nil {
		return "", err
	}
	switch action {
	case interruption.ActionTerminate, interruption.ActionStop, interruption.ActionHibernate:
		return action, nil
	}
	return interruption.ActionTerminate, nil
}
