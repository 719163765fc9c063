package queue

import "spot-handler/handler/awsfault"

// fail counts every fault and logs the news.
func (c *Consumer) fail(r *awsfault.Reporter, err error, text string) {
	reason := awsfault.Of(err)
	c.metrics.errors(reason).Inc()
	if r.Changed(reason) {
		c.log.Error().Err(err).Str("reason", string(reason)).Msg(text)
	}
}

func (c *Consumer) recover(r *awsfault.Reporter, text string) {
	if r.Recovered() {
		c.log.Info().Str("queue", c.queue).Msg(text)
	}
}
