package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/imds"
	"spot-handler/queue"
)

func newPoller(ctx context.Context, cfg settings, to interruption.Accepter, registry prometheus.Registerer, logger zerolog.Logger) (source, error) {
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load AWS configuration: %w", err)
	}
	return imds.New(imds.Options{
		Client: imds.NewClient(conf), Accepter: to, NodeName: cfg.nodeName, Kinds: cfg.kinds, Interval: cfg.pollInterval,
		Registerer: registry, Logger: logger,
	}), nil
}

func newConsumer(conf aws.Config, cfg settings, to interruption.Accepter, registry prometheus.Registerer, logger zerolog.Logger) source {
	return queue.New(queue.Options{
		Client: sqs.NewFromConfig(conf, func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }), QueueURL: cfg.queueURL,
		Accepter: to, DryRun: cfg.dryRun,
		Registerer: registry, Logger: logger,
	})
}

// newHooks answers lifecycle hooks; nil in the other modes, where they are not answered.
func newHooks(cfg settings, conf aws.Config, registry prometheus.Registerer, logger zerolog.Logger) lifecycle.Hooks {
	if cfg.mode != modeQueue {
		return nil
	}
	return lifecycle.New(lifecycle.Options{AutoScaling: autoScaling(conf), Registerer: registry, Logger: logger})
}

// autoScaling is a client that tries nothing again: those who use it do.
func autoScaling(conf aws.Config) *autoscaling.Client {
	return autoscaling.NewFromConfig(conf, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
}

// ec2Calls are the calls of EC2 that the daemon makes. Were the SDK's client itself an
// interface's value, the linker would keep all its 800 methods, as text/template finds
// methods by name: 30 MB.
type ec2Calls struct {
	describeTags func(context.Context, *ec2.DescribeTagsInput, ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error)
	terminate    func(context.Context, *ec2.TerminateInstancesInput, ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error)
}

// newEC2 tries nothing again either.
func newEC2(conf aws.Config) ec2Calls {
	client := ec2.NewFromConfig(conf, func(o *ec2.Options) { o.Retryer = aws.NopRetryer{} })
	return ec2Calls{client.DescribeTags, client.TerminateInstances}
}

func (c ec2Calls) DescribeTags(ctx context.Context, in *ec2.DescribeTagsInput, opts ...func(*ec2.Options)) (*ec2.DescribeTagsOutput, error) {
	return c.describeTags(ctx, in, opts...)
}

func (c ec2Calls) TerminateInstances(ctx context.Context, in *ec2.TerminateInstancesInput, opts ...func(*ec2.Options)) (*ec2.TerminateInstancesOutput, error) {
	return c.terminate(ctx, in, opts...)
}

// regionalConfig is the AWS configuration, with the queue's region where none is given.
func regionalConfig(ctx context.Context, cfg settings) (aws.Config, error) {
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, fmt.Errorf("load AWS configuration: %w", err)
	}
	if conf.Region == "" {
		conf.Region = regionOf(cfg.queueURL)
	}
	if conf.Region == "" {
		return aws.Config{}, fmt.Errorf("%w: AWS_REGION is not set, and --queue-url (SPOT_HANDLER_QUEUE_URL) %q does not name a region", errUsage, cfg.queueURL)
	}
	conf.APIOptions = append(conf.APIOptions, awsfault.PlainBody)
	return conf, nil
}

// regionOf reads the region from the host of a queue's URL: sqs.<region>.amazonaws.com
// and its like in other partitions; empty for any other host.
// https://docs.aws.amazon.com/general/latest/gr/sqs-service.html
func regionOf(queueURL string) string {
	u, err := url.Parse(queueURL)
	if err != nil {
		return ""
	}
	labels := strings.Split(u.Hostname(), ".")
	if len(labels) < 4 || labels[0] != "sqs" || labels[2] != "amazonaws" {
		return ""
	}
	return labels[1]
}
