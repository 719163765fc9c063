package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/console"
)

// Other is another program that acts on notices, or on other announcements that instances end.
type Other struct {
	Owned
	Karpenter bool // else aws-node-termination-handler
	// HasQueue: Karpenter has an interruption queue. Variable holds it; empty if an argument does.
	HasQueue bool
	Variable string
	// PollsStatus: Karpenter asks EC2 for scheduled events and failed status checks by itself.
	PollsStatus bool
}

// takesNotices reports whether the program takes interruption notices.
func (o Other) takesNotices() bool { return !o.Karpenter || o.HasQueue }

// karpentersOwnQueue: Karpenter acts on the same notices, its own way.
func karpentersOwnQueue(_ Snapshot, o Other) []Finding {
	if !o.Karpenter || !o.HasQueue {
		return nil
	}
	fix := fmt.Sprintf("in the manifest of %s: no --interruption-queue", o.Object)
	if o.Variable != "" {
		fix = console.Command("kubectl", "-n", o.Namespace, "set", "env", o.Object, o.Variable+"-")
	}
	return []Finding{{
		What: "has an interruption queue of its own",
		Why:  "it deletes interrupted nodes itself, whatever the two minutes allow, and launches spot again; which of the two acts first is chance",
		Fix:  fix,
	}}
}

// anotherHandler: two handlers on one cluster drain every node twice.
func anotherHandler(_ Snapshot, o Other) []Finding {
	if o.Karpenter {
		return nil
	}
	return []Finding{{
		What: "is aws-node-termination-handler, beside spot-handler",
		Why:  "it evicts all pods at once on the same notice, so no pod waits for its replacement pod or node",
		Fix:  o.kubectl("delete"),
	}}
}

// karpenterPollsStatus: Karpenter does not wait until a scheduled event is near.
func karpenterPollsStatus(_ Snapshot, o Other) []Finding {
	if !o.PollsStatus {
		return nil
	}
	return []Finding{{
		What: "asks EC2 each minute for scheduled events, and drains their nodes at once",
		Why:  "--scheduled-lead has no effect on its nodes: they are drained days before the event, and without a replacement first",
		Fix:  "accept it, or take ec2:DescribeInstanceStatus from Karpenter's IAM role and restart it; it then misses failed status checks, too",
	}}
}

// labelled is the metadata with labels.
type labelled struct {
	cluster.Meta
	Labels map[string]string `json:"labels"`
}

// program is what is read of a Deployment or a DaemonSet.
type program struct {
	labelled `json:"metadata"`
	Spec     struct {
		Template struct {
			Spec struct {
				Containers []struct {
					Image         string
					Command, Args []string
					Env           []struct {
						Name, Value string
						ValueFrom   *struct{}
					}
				}
			}
		}
	}
}

// others finds programs by the labels that their charts and manifests give them.
func (r Reader) others(ctx context.Context, s *Snapshot) error {
	var errs []error
	for _, kind := range []string{"deployment", "daemonset"} {
		for _, name := range []string{"karpenter", "aws-node-termination-handler"} {
			errs = append(errs, optional(cluster.Each(ctx, r.Lists, cluster.Resource("apps", kind+"s"), "app.kubernetes.io/name="+name, func(p *program) {
				o := Other{Owned: Owned{p.Namespace, kind + "/" + p.Name}, Karpenter: name == "karpenter"}
				if o.Karpenter {
					o.Variable, o.HasQueue = p.interruptionQueue()
					o.PollsStatus = p.pollsStatus()
				}
				if o.takesNotices() || o.PollsStatus {
					s.Others = append(s.Others, o)
				}
			})))
		}
	}
	return errors.Join(errs...)
}

// interruptionQueue reports whether Karpenter is given a queue, and by which variable.
// https://karpenter.sh/docs/reference/settings/
func (p *program) interruptionQueue() (variable string, ok bool) {
	for _, c := range p.Spec.Template.Spec.Containers {
		for _, v := range c.Env {
			if v.Name == "INTERRUPTION_QUEUE" && (v.Value != "" || v.ValueFrom != nil) {
				return v.Name, true
			}
		}
		args := slices.Concat(c.Command, c.Args)
		for i, arg := range args {
			value, inline := strings.CutPrefix(arg, "--interruption-queue=")
			if inline && value != "" || arg == "--interruption-queue" && i+1 < len(args) && args[i+1] != "" {
				return "", true
			}
		}
	}
	return "", false
}

// pollsStatus reports whether it is a Karpenter that calls ec2:DescribeInstanceStatus, whether or not
// it has an interruption queue: that of AWS since 1.12. Its image has the version, else its chart's
// label.
// https://github.com/aws/karpenter-provider-aws/blob/v1.12.0/pkg/controllers/controllers.go#L115
func (p *program) pollsStatus() bool {
	version := p.Labels["app.kubernetes.io/version"]
	for _, c := range p.Spec.Template.Spec.Containers {
		image, _, _ := strings.Cut(c.Image, "@")
		if at := strings.LastIndexByte(image, ':'); at > strings.LastIndexByte(image, '/') {
			version = image[at+1:]
		}
	}
	v, err := utilversion.ParseSemantic(version)
	return err == nil && v.AtLeast(utilversion.MajorMinor(1, 12))
}
