package interruption

// Kind says in which way EC2 is about to end an instance. Its text is what
// operators see: in the record, in the taint's value, in metrics and in logs.
type Kind string

const (
	// SpotInterruption is the notice that EC2 reclaims a spot instance, about two
	// minutes ahead.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
	SpotInterruption Kind = "spot-interruption"

	// RebalanceRecommendation says that a spot instance is at a raised risk of
	// interruption. It has no deadline and may never be followed by a notice.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
	RebalanceRecommendation Kind = "rebalance-recommendation"
)

// Kinds lists every kind, weakest first.
func Kinds() []Kind { return []Kind{RebalanceRecommendation, SpotInterruption} }

// strength orders kinds: where several reach one instance, the strongest is what
// the record says. Unknown kinds, such as those of a newer version of this
// program, are the weakest.
func (k Kind) strength() int {
	for i, known := range Kinds() {
		if k == known {
			return i + 1
		}
	}
	return 0
}

// Stronger reports whether k overrules other.
func (k Kind) Stronger(other Kind) bool { return k.strength() > other.strength() }

// Certain reports whether the instance is sure to end, as opposed to being at risk.
func (k Kind) Certain() bool { return k == SpotInterruption }

// Source says from where a notice came.
type Source string

const (
	IMDS  Source = "imds"  // the instance metadata service, on the node itself
	Queue Source = "queue" // the SQS queue that EventBridge feeds
)

// Sources lists every source.
func Sources() []Source { return []Source{IMDS, Queue} }
