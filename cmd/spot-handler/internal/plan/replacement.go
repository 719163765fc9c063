package plan

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// Asker asks for a replacement, as provisioner.Provisioner does.
type Asker interface {
	Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error)
}

// Weigher says what speaks for and against each NodePool, as karpenter.Backend does; nothing for
// a node that Karpenter has not made.
type Weigher interface {
	Weigh(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) ([]karpenter.Weighed, error)
}

// Planner asks for replacements of which none is made.
type Planner struct {
	Asker   Asker // over clients of Notes
	Weigher Weigher
	Notes   *Notes
}

// Planned is what would be asked for in a node's place.
type Planned struct {
	Replacement Replacement
	// Capacity is what the node's pods can wait for.
	Capacity drain.Capacity
	// Becomes is the Node that the replacement would be, empty: as small as the NodeClaim asks for, or
	// else like the one that it replaces. It is nil if there is none.
	Becomes *corev1.Node
}

// For asks for a node's replacement. unread is what the Weigher could not read, and costs the
// answer only its reasons; an error is one that the daemon would try again.
func (p Planner) For(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (planned Planned, unread string, err error) {
	weighed, err := p.Weigher.Weigh(ctx, node, rec, need) // before Request takes of the limits
	if err != nil {
		unread = fmt.Sprintf("why node %s is replaced from that pool: %v", node.Name, err)
	}
	got, err := p.Asker.Request(ctx, node, rec, need)
	made := p.Notes.take()
	if err != nil {
		return Planned{}, unread, fmt.Errorf("ask for the replacement of node %q: %w", node.Name, err)
	}
	r := Replacement{Backend: got.Backend, State: got.State, Name: got.Name, Pool: got.Pool, Why: got.Reason}
	switch got.State {
	case provisioner.StateRequested, provisioner.StateLaunched:
		planned.Capacity = drain.PendingCapacity
	case provisioner.StateReady:
		planned.Capacity = drain.ReadyCapacity
	default:
		r.NoPlace = nowhere(need)
	}
	r.Pods, r.Daemons = len(need.Moving), len(need.Daemons)
	switch {
	case got.Backend == provisioner.Karpenter:
		chosen := weigh(&r, got, weighed)
		for _, object := range made {
			if claim, ok := object.(claimed); ok {
				claim.describe(&r)
				planned.Becomes = claim.node(node, chosen.Inherited)
			}
		}
		r.Pods -= len(r.NoPlace)
	case got.State != provisioner.StateRequested:
	case got.Backend == provisioner.Placeholder:
		describePlaceholders(&r, made)
		planned.Becomes = Alike(node, got.Pool)
	case got.Backend == provisioner.ASG:
		r.Why, planned.Becomes = assumedGroup, Alike(node, "")
	}
	if planned.Capacity != drain.PendingCapacity {
		r.Pods, r.Daemons = 0, 0
	}
	planned.Replacement = r
	return planned, unread, nil
}

// assumedGroup stands in the place of an answer from AWS, which the commands for people never ask.
const assumedGroup = "its Auto Scaling group launches another instance; AWS, which is not asked here, knows whether it is in one"

// weigh says why the chosen pool, and why no other.
func weigh(r *Replacement, got interruption.Replacement, pools []karpenter.Weighed) (chosen karpenter.Weighed) {
	for i, w := range pools {
		switch {
		case w.Pool == got.Pool && w.Capacity == got.Capacity && got.State == provisioner.StateRequested && w.Against == "":
			chosen = w
			for _, misfit := range w.Without {
				for _, pod := range misfit.Pods {
					r.NoPlace = append(r.NoPlace, pod+": "+misfit.Reason)
				}
			}
			remark := r.Why
			switch {
			case w.Named != "":
				r.Why = "named by " + w.Named
			case w.Better != "":
				r.Why = fmt.Sprintf("it %s, unlike %s", w.Better, pools[i+1].Pool)
			default:
				r.Why = "no other pool can"
			}
			if remark != "" {
				r.Why += "; " + remark
			}
		case w.Against != "":
			r.Others = append(r.Others, OtherPool{Name: w.Pool, Why: w.Against})
		default:
			r.Others = append(r.Others, OtherPool{Name: w.Pool, Why: "it comes after " + got.Pool})
		}
	}
	return chosen
}

// nowhere names all pods.
func nowhere(need provisioner.Need) (pods []string) {
	for _, pod := range need.Moving {
		pods = append(pods, pod.Namespace+"/"+pod.Name+": there is no replacement")
	}
	return pods
}
