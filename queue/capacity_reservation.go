package queue

import (
	"time"

	"spot-handler/handler/interruption"
)

// maxCapacityLead is how far ahead the end of an instance in a capacity reservation can be
// announced. EC2 does so two minutes ahead.
const maxCapacityLead = 24 * time.Hour

// parseCapacityReservation reads an "EC2 Capacity Reservation Instance Interruption
// Warning", the only one of EC2's that says exactly when.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruptible-capacity-reservations.html
func parseCapacityReservation(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, instance, err := e.instanceDetail()
	if err != nil {
		return nil, err
	}
	action, err := actionField(detail)
	if err != nil {
		return nil, err
	}
	at, err := timeField(detail, "instance-termination-time", received.Add(-maxPast), received.Add(maxCapacityLead), time.RFC3339)
	if err != nil {
		return nil, err
	}
	n := e.notice(interruption.CapacityReservationInterruption, instance, received)
	n.Action, n.Deadline = action, at
	return []interruption.Notice{n}, nil
}
