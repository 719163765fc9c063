package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/imds"
	"spot-handler/queue"
)

func newPoller(ctx context.Context, cfg config, to accepter, registry prometheus.Registerer, logger zerolog.Logger) (source, error) {
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load AWS configuration: %w", err)
	}
	return imds.New(imds.Options{
		Client: imds.NewClient(conf), Accepter: to, NodeName: cfg.nodeName, Interval: cfg.pollInterval,
		Registerer: registry, Logger: logger,
	}), nil
}

func newConsumer(ctx context.Context, cfg config, to accepter, registry prometheus.Registerer, logger zerolog.Logger) (source, error) {
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return nil, fmt.Errorf("load AWS configuration: %w", err)
	}
	if conf.Region == "" {
		conf.Region = regionOf(cfg.queueURL)
	}
	if conf.Region == "" {
		return nil, fmt.Errorf("%w: AWS_REGION is not set, and --queue-url (SPOT_HANDLER_QUEUE_URL) %q does not name a region", errUsage, cfg.queueURL)
	}
	return queue.New(queue.Options{
		Client: sqs.NewFromConfig(conf, func(o *sqs.Options) { o.Retryer = aws.NopRetryer{} }), QueueURL: cfg.queueURL,
		Accepter: to, Receivers: cfg.receivers, DryRun: cfg.dryRun,
		Registerer: registry, Logger: logger,
	}), nil
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
