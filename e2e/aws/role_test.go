package aws

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ofGroups are the packages that the setting for Auto Scaling groups is for. The role may always make
// the calls of the others.
var ofGroups = []string{"handler/provisioner/asg", "handler/lifecycle"}

// The role may do what the code calls, no more and no less.
func TestActionsAreWhatTheCodeCalls(t *testing.T) {
	var always, groups []string
	for _, dir := range callers(t) {
		if calls := called(t, dir); slices.Contains(ofGroups, dir) {
			groups = append(groups, calls...)
		} else {
			always = append(always, calls...)
		}
	}
	always = unique(always)
	if !slices.Contains(always, "sqs:ReceiveMessage") {
		t.Fatalf("the code calls %v: how does it receive messages?", always)
	}
	for _, tt := range []struct {
		name     string
		settings settings
		want     []string
	}{
		{"alone", settings{}, always},
		{"with Auto Scaling groups", settings{autoScaling: true}, slices.Concat(always, groups)},
		// Not called, but asked for in the caller's name when SQS decrypts a message.
		{"with a key", settings{kmsKey: key}, slices.Concat(always, []string{"kms:Decrypt"})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			slices.Sort(tt.want)
			everyWay(t, tt.settings, func(t *testing.T, d deployment) {
				if diff := cmp.Diff(tt.want, actions(d.permissions)); diff != "" {
					t.Errorf("actions (-called by the code +allowed):\n%s", diff)
				}
			})
		})
	}
}

// What can be bound to a resource is.
func TestResources(t *testing.T) {
	const own, chosen = "kubernetes.io/cluster/" + cluster, "eks:cluster-name"
	for _, tt := range []struct {
		settings   settings
		key, value string
	}{
		{settings{autoScaling: true, kmsKey: key}, own, "owned"},
		{settings{autoScaling: true, kmsKey: key, tagKey: chosen, tagValue: cluster}, chosen, cluster},
	} {
		everyWay(t, tt.settings, func(t *testing.T, d deployment) {
			tagged := func(service string) map[string]map[string]texts {
				return map[string]map[string]texts{"StringEquals": {service + ":ResourceTag/" + tt.key: {tt.value}}}
			}
			type bounds struct {
				Resource  texts
				Condition map[string]map[string]texts
			}
			want := map[string]bounds{
				"sqs:ReceiveMessage":          {Resource: texts{d.queue.arn}},
				"sqs:DeleteMessage":           {Resource: texts{d.queue.arn}},
				"sqs:ChangeMessageVisibility": {Resource: texts{d.queue.arn}},
				"sqs:GetQueueAttributes":      {Resource: texts{d.queue.arn}},
				"kms:Decrypt":                 {Resource: texts{key}},
				// These three know neither resources nor tags.
				// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
				// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
				"autoscaling:DescribeAutoScalingInstances": {Resource: texts{"*"}},
				"autoscaling:DescribeAutoScalingGroups":    {Resource: texts{"*"}},
				"autoscaling:DescribeLifecycleHooks":       {Resource: texts{"*"}},
				"autoscaling:CompleteLifecycleAction": {
					texts{arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")}, tagged("autoscaling"),
				},
				"autoscaling:RecordLifecycleActionHeartbeat": {
					texts{arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")}, tagged("autoscaling"),
				},
				"autoscaling:DetachInstances": {
					texts{arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*")}, tagged("autoscaling"),
				},
				"ec2:TerminateInstances": {texts{arn("ec2", "instance/*")}, tagged("ec2")},
			}
			got := map[string]bounds{}
			for _, s := range d.permissions {
				for _, a := range s.Action {
					got[a] = bounds{s.Resource, s.Condition}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodIdentity(t *testing.T) {
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		want := []statement{{
			Sid: "PodIdentity", Effect: "Allow", Principal: map[string]any{"Service": "pods.eks.amazonaws.com"},
			Action: texts{"sts:AssumeRole", "sts:TagSession"},
			Condition: map[string]map[string]texts{"StringEquals": {
				"aws:RequestTag/eks-cluster-arn":            {arn("eks", "cluster/"+cluster)},
				"aws:RequestTag/kubernetes-namespace":       {"spot-handler"},
				"aws:RequestTag/kubernetes-service-account": {"spot-handler-queue"},
			}},
		}}
		if diff := cmp.Diff(want, d.trust); diff != "" {
			t.Errorf("trust (-want +got):\n%s", diff)
		}
		association := map[string]string{
			"cluster": cluster, "namespace": "spot-handler", "service account": "spot-handler-queue",
			"role": d.association["role"],
		}
		if diff := cmp.Diff(association, d.association); diff != "" || d.association["role"] == "" {
			t.Errorf("association (-want +got):\n%s", diff)
		}
	})
}

func TestIRSA(t *testing.T) {
	const issuer = "oidc.eks.us-gov-west-1.amazonaws.com/id/0123456789ABCDEF0123456789ABCDEF"
	everyWay(t, settings{credentials: "irsa", oidcProvider: issuer}, func(t *testing.T, d deployment) {
		want := []statement{{
			Sid: "ServiceAccount", Effect: "Allow",
			Principal: map[string]any{"Federated": "arn:" + partition + ":iam::" + account + ":oidc-provider/" + issuer},
			Action:    texts{"sts:AssumeRoleWithWebIdentity"},
			Condition: map[string]map[string]texts{"StringEquals": {
				issuer + ":aud": {"sts.amazonaws.com"},
				issuer + ":sub": {"system:serviceaccount:spot-handler:spot-handler-queue"},
			}},
		}}
		if diff := cmp.Diff(want, d.trust); diff != "" {
			t.Errorf("trust (-want +got):\n%s", diff)
		}
		if d.association != nil {
			t.Errorf("there is an association of EKS Pod Identity, too: %v", d.association)
		}
	})
}

func TestNoRole(t *testing.T) {
	everyWay(t, settings{credentials: "none"}, func(t *testing.T, d deployment) {
		if d.trust != nil || d.association != nil {
			t.Errorf("trust %v, association %v", d.trust, d.association)
		}
	})
}

// The ServiceAccount that may have the role is the one that the pods are installed with.
func TestServiceAccountOfInstallation(t *testing.T) {
	namespace, name := serviceAccount(t)
	everyWay(t, settings{}, func(t *testing.T, d deployment) {
		if d.association["namespace"] != namespace || d.association["service account"] != name {
			t.Errorf("the role is for %s in %s, the pods have %s in %s",
				d.association["service account"], d.association["namespace"], name, namespace)
		}
	})
}
