package plan

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// Deployment is the part of a Deployment that a surge depends on. The whole type would link
// all of its API group into a process that has to stay small, as it runs on every node.
type Deployment struct {
	metav1.ObjectMeta `json:"metadata"`
	Cut               bool `json:"spotHandlerCut"` // see narrow.CutKey
	Spec              struct {
		Replicas        *int32                `json:"replicas"`
		Paused          bool                  `json:"paused"`
		MinReadySeconds int32                 `json:"minReadySeconds"`
		Selector        *metav1.LabelSelector `json:"selector"`
		Strategy        struct {
			Type          string `json:"type"`
			RollingUpdate *struct {
				MaxSurge *intstr.IntOrString `json:"maxSurge"`
			} `json:"rollingUpdate"`
		} `json:"strategy"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64                 `json:"observedGeneration"`
		Replicas           int32                 `json:"replicas"`
		UpdatedReplicas    int32                 `json:"updatedReplicas"`
		Conditions         []deploymentCondition `json:"conditions"`
	} `json:"status"`
}

// replicaFailure is the condition of a Deployment whose pods cannot be made.
const replicaFailure = "ReplicaFailure"

type deploymentCondition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

// Unreadable says why nothing can be planned with the Deployment; nil if it can.
func (d *Deployment) Unreadable() error {
	_, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	switch {
	case d.Cut:
		return errors.New("it is larger than what is read of one")
	case d.Spec.Selector == nil: // the API demands one
		return errors.New("it is not as the API describes it")
	}
	return err
}

// Replicas is how many pods it asks for.
func (d *Deployment) Replicas() int { return int(ptr.Deref(d.Spec.Replicas, 1)) }

// maxSurge is how many pods the Deployment may have above its replicas while it rolls:
// its owner's consent to as many replacement pods at a time. A percentage is rounded up.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#max-surge
func (d *Deployment) maxSurge() int {
	if d.Spec.Strategy.Type != "RollingUpdate" || d.Spec.Strategy.RollingUpdate == nil || d.Spec.Strategy.RollingUpdate.MaxSurge == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(d.Spec.Strategy.RollingUpdate.MaxSurge, d.Replicas(), true)
	if err != nil {
		return 0
	}
	return n
}

// forbids says why the owner does not let pods of the Deployment be surged, or is empty.
func (d *Deployment) forbids() string {
	switch {
	case d.Cut:
		return "is larger than what is read of one"
	case d.Spec.Strategy.Type != "RollingUpdate":
		return "has the strategy " + d.Spec.Strategy.Type
	case d.maxSurge() <= 0:
		return "has maxSurge 0"
	case d.Spec.Paused:
		return "is paused"
	}
	return ""
}

// refuses says why pods of the Deployment cannot be surged now, or is empty.
func (d *Deployment) refuses() string {
	if why := d.forbids(); why != "" {
		return why
	}
	switch {
	case d.Status.ObservedGeneration < d.Generation, d.Status.UpdatedReplicas < d.Status.Replicas:
		return "is being rolled out"
	}
	return d.failure()
}

// failure says why pods of the Deployment cannot be made, such as for a quota, or is empty.
func (d *Deployment) failure() string {
	for _, c := range d.Status.Conditions {
		if c.Type == replicaFailure && c.Status == "True" {
			return "cannot make pods: " + c.Message
		}
	}
	return ""
}

// Specified is the part of its state that the specification alone decides: the selector, and why
// the owner does not let pods be surged.
func (d *Deployment) Specified() (DeploymentState, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return DeploymentState{Selector: selector, Refuses: d.forbids()}, err
}
