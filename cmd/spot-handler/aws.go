package main

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// The clients of AWS whose calls stand alone. Were the SDK's client itself the value of an interface,
// the linker would keep all of its methods, as text/template finds methods by name: 30 MB of program
// for the 800 of EC2, and 2 MB for the 60 of EC2 Auto Scaling, half a megabyte of which is resident on
// every spot node.

// newEC2 is a client that tries nothing again: those who use it do.
func newEC2(conf aws.Config) *ec2.Client {
	return ec2.NewFromConfig(conf, func(o *ec2.Options) { o.Retryer = aws.NopRetryer{} })
}

// describeTags is EC2's.
type describeTags func(context.Context, *ec2.DescribeTagsInput, ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error)

// DescribeTags describes tags.
func (f describeTags) DescribeTags(ctx context.Context, in *ec2.DescribeTagsInput, opts ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error) {
	return f(ctx, in, opts...)
}

// autoScaling is what is called of EC2 Auto Scaling.
type autoScaling struct {
	describeAutoScalingInstances   func(context.Context, *autoscaling.DescribeAutoScalingInstancesInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingInstancesOutput, error)
	describeAutoScalingGroups      func(context.Context, *autoscaling.DescribeAutoScalingGroupsInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error)
	detachInstances                func(context.Context, *autoscaling.DetachInstancesInput, ...func(*autoscaling.Options)) (*autoscaling.DetachInstancesOutput, error)
	completeLifecycleAction        func(context.Context, *autoscaling.CompleteLifecycleActionInput, ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
	recordLifecycleActionHeartbeat func(context.Context, *autoscaling.RecordLifecycleActionHeartbeatInput, ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	describeLifecycleHooks         func(context.Context, *autoscaling.DescribeLifecycleHooksInput, ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
}

// newAutoScaling tries nothing again either.
func newAutoScaling(conf aws.Config) autoScaling {
	c := autoscaling.NewFromConfig(conf, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
	return autoScaling{
		c.DescribeAutoScalingInstances, c.DescribeAutoScalingGroups, c.DetachInstances,
		c.CompleteLifecycleAction, c.RecordLifecycleActionHeartbeat, c.DescribeLifecycleHooks,
	}
}

// DescribeAutoScalingInstances describes instances that are in groups.
func (a autoScaling) DescribeAutoScalingInstances(ctx context.Context, in *autoscaling.DescribeAutoScalingInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingInstancesOutput, error) {
	return a.describeAutoScalingInstances(ctx, in, opts...)
}

// DescribeAutoScalingGroups describes groups.
func (a autoScaling) DescribeAutoScalingGroups(ctx context.Context, in *autoscaling.DescribeAutoScalingGroupsInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
	return a.describeAutoScalingGroups(ctx, in, opts...)
}

// DetachInstances detaches instances from their group.
func (a autoScaling) DetachInstances(ctx context.Context, in *autoscaling.DetachInstancesInput, opts ...func(*autoscaling.Options)) (*autoscaling.DetachInstancesOutput, error) {
	return a.detachInstances(ctx, in, opts...)
}

// CompleteLifecycleAction has the group stop waiting at a hook.
func (a autoScaling) CompleteLifecycleAction(ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, opts ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error) {
	return a.completeLifecycleAction(ctx, in, opts...)
}

// RecordLifecycleActionHeartbeat has the group wait for longer.
func (a autoScaling) RecordLifecycleActionHeartbeat(ctx context.Context, in *autoscaling.RecordLifecycleActionHeartbeatInput, opts ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error) {
	return a.recordLifecycleActionHeartbeat(ctx, in, opts...)
}

// DescribeLifecycleHooks describes a group's hooks.
func (a autoScaling) DescribeLifecycleHooks(ctx context.Context, in *autoscaling.DescribeLifecycleHooksInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error) {
	return a.describeLifecycleHooks(ctx, in, opts...)
}
