package main

import (
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
	"spot-handler/handler/managed"
	"spot-handler/handler/nodes"
)

// newManaged is to, restricted to the instances that carry --managed-tag. It is there without
// the flag too, and passes everything on then.
func newManaged(conf aws.Config, cfg settings, to interruption.Accepter, index *nodes.Index, registry prometheus.Registerer, logger zerolog.Logger) interruption.Accepter {
	return managed.New(managed.Options{
		Tag: cfg.managed, Next: to, EC2: newEC2(conf), Nodes: index, Registerer: registry, Logger: part(logger, "managed"),
	})
}
