package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsbody"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/asg"
	"spot-handler/imds"
	"spot-handler/queue"
)

func newPoller(ctx context.Context, cfg config, to accepter, registry prometheus.Registerer, logger zerolog.Logger) (source, error) {
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load AWS configuration: %w", err)
	}
	return imds.New(imds.Options{
		Client: imds.NewClient(conf), Accepter: to, NodeName: cfg.nodeName, Kinds: cfg.watch.kinds(), Interval: cfg.pollInterval,
		Registerer: registry, Logger: logger,
	}), nil
}

func newConsumer(conf aws.Config, cfg config, to accepter, registry prometheus.Registerer, logger zerolog.Logger) source {
	return queue.New(queue.Options{
		Client: sqs.NewFromConfig(conf, func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }), QueueURL: cfg.queueURL,
		Accepter: to, Receivers: cfg.receivers, DryRun: cfg.dryRun,
		Registerer: registry, Logger: logger,
	})
}

// newGroups makes the backend that replaces nodes through their Auto Scaling groups.
func newGroups(ctx context.Context, conf aws.Config, index *nodes.Index, notify func(string), registry prometheus.Registerer, logger zerolog.Logger) (*asg.Backend, error) {
	ec2, err := asg.NewEC2(ctx, conf, os.Getenv)
	if err != nil {
		return nil, err
	}
	return asg.New(asg.Options{
		AutoScaling: autoScaling(conf), EC2: ec2, Nodes: index, Notify: notify, Registerer: registry, Logger: logger,
	}), nil
}

// newHooks answers lifecycle hooks; nil in imds mode, where they are not answered.
func newHooks(cfg config, conf aws.Config, registry prometheus.Registerer, logger zerolog.Logger) lifecycle.Hooks {
	if cfg.mode != modeQueue {
		return nil
	}
	return lifecycle.New(lifecycle.Options{AutoScaling: autoScaling(conf), Registerer: registry, Logger: logger})
}

// autoScaling is a client that tries nothing again: those who use it do.
func autoScaling(conf aws.Config) *autoscaling.Client {
	return autoscaling.NewFromConfig(conf, func(o *autoscaling.Options) { o.Retryer = aws.NopRetryer{} })
}

// regionalConfig is the AWS configuration, with the queue's region where none is given.
func regionalConfig(ctx context.Context, cfg config) (aws.Config, error) {
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
	conf.APIOptions = append(conf.APIOptions, awsbody.Plain)
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
