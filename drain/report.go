package drain

import (
	"github.com/rs/zerolog"

	"spot-handler/drain/plan"
)

// triedAgain are what is logged of requests that are made again.
var triedAgain = map[plan.Action]string{
	plan.SurgeNow: "surge pod",
	plan.Evict:    "evict pod",
	plan.Force:    "delete pod past its PDB",
	plan.End:      "end surged pod",
	plan.Return:   "give surged pod back to its ReplicaSet",
}

// report notifies and logs what has become of a pod.
func (d *Drainer) report(r plan.Report) {
	if r.Kind == plan.SurgesGivenUp {
		d.opts.Logger.Warn().Str("deployment", r.Deployment.String()).Str("reason", r.Reason).
			Msg("surge is of no use; pods go back into their ReplicaSet and are held")
		return
	}
	log := d.opts.Logger.With().Str("node", r.Node).Str("pod", r.Pod.Namespace+"/"+r.Pod.Name).Logger()
	switch r.Kind {
	case plan.EvictionBlocked:
		d.opts.Events.EvictionBlocked(r.Node, r.Pod, r.Reason)
	case plan.EvictionForced:
		log.Warn().Str("reason", r.Reason).Msg("pod deleted past its PDB")
		d.opts.Events.EvictionForced(r.Node, r.Pod, r.Reason)
	case plan.AnnotationMeaningless:
		tell := d.opts.Events.AnnotationMeaningless
		if r.OfNamespace {
			tell = d.opts.Events.NamespaceAnnotationMeaningless
		}
		tell(r.Node, r.Pod, r.Reason)
	case plan.Surged:
		log.Debug().Msg("pod surged: its replacement pod is made")
	case plan.NotSurged, plan.NotSurgedEither: // the latter was said about another pod
		level := zerolog.WarnLevel
		if r.Kind == plan.NotSurgedEither {
			level = zerolog.DebugLevel
		}
		log.WithLevel(level).Str("reason", r.Reason).Msg("surge pod; it is held instead")
	case plan.Returned:
		log.Debug().Str("reason", r.Reason).Msg("surged pod given back to its ReplicaSet")
	case plan.Ended:
		log.Info().Str("reason", r.Reason).Msg("surged pod ended, as its ReplicaSet would have")
	case plan.TriedAgain:
		log.Debug().Str("reason", r.Reason).Int("attempt", r.Attempt).Msg(triedAgain[r.Action])
	}
}
