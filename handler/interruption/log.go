package interruption

import (
	"time"

	"github.com/rs/zerolog"
)

// MarshalZerologObject adds the fields that every line of an interruption's story carries.
func (r Record) MarshalZerologObject(e *zerolog.Event) {
	e.Str("instance_id", r.Instance).Str("kind", string(r.Kind)).Str("source", string(r.Source))
	if d := r.DeadlineTime(); !d.IsZero() {
		e.Time("deadline", d).Float64("remaining_seconds", time.Until(d).Seconds())
	}
}
