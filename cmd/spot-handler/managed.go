package main

import (
	"context"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/managed"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/asg"
)

// newManaged is to, restricted to the instances that carry --managed-tag. It is there without
// the flag too, and passes everything on then.
func newManaged(ctx context.Context, conf aws.Config, cfg config, to accepter, index *nodes.Index, registry prometheus.Registerer, logger zerolog.Logger) (accepter, error) {
	ec2, err := asg.NewEC2(ctx, conf, os.Getenv)
	if err != nil {
		return nil, err
	}
	return managed.New(managed.Options{
		Tag: cfg.managed, Next: to, EC2: ec2, Nodes: index, Registerer: registry, Logger: part(logger, "managed"),
	}), nil
}
