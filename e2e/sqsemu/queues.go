package sqsemu

import (
	"context"
	"regexp"
	"strings"
	"time"
)

// purgeInterval is how long SQS refuses a second purge of a queue.
const purgeInterval = 60 * time.Second

var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

func (s *Server) createQueue(name string, given map[string]string) (*Queue, *apiError) {
	if !queueName.MatchString(name) {
		return nil, errParameter("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	if q := s.queues[name]; q != nil {
		for attribute, value := range given {
			if old, _ := q.attributes.get(attribute); old != value {
				return nil, errQueueExists(attribute)
			}
		}
		return q, nil
	}
	a, err := defaultAttributes().with(s, given)
	if err != nil {
		return nil, err
	}
	q := newQueue(s, name, a)
	s.queues[name] = q
	return q, nil
}

// find returns the queue of a URL. SQS goes by the path alone: a URL with another host, as seen through a tunnel,
// works.
func (s *Server) find(url string) (*Queue, *apiError) {
	if url == "" {
		return nil, errMissing("QueueUrl")
	}
	q := s.queues[url[strings.LastIndex(url, "/")+1:]]
	if q == nil {
		return nil, errQueueDoesNotExist()
	}
	return q, nil
}

// withQueue runs f on the queue of a URL under the lock.
func (s *Server) withQueue(url string, f func(*Queue) (any, *apiError)) (any, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(url)
	if err != nil {
		return nil, err
	}
	return f(q)
}

type createQueueInput struct {
	QueueName  string
	Attributes map[string]string
}

type queueURLOutput struct{ QueueUrl string }

func (s *Server) handleCreateQueue(_ context.Context, in *createQueueInput) (any, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.createQueue(in.QueueName, in.Attributes)
	if err != nil {
		return nil, err
	}
	return queueURLOutput{q.URL()}, nil
}

type getQueueURLInput struct{ QueueName string }

func (s *Server) handleGetQueueURL(_ context.Context, in *getQueueURLInput) (any, *apiError) {
	return s.withQueue(in.QueueName, func(q *Queue) (any, *apiError) { return queueURLOutput{q.URL()}, nil })
}

type queueInput struct{ QueueUrl string }

// handleDeleteQueue deletes at once; the real service takes up to a minute, and refuses the name for that long.
func (s *Server) handleDeleteQueue(_ context.Context, in *queueInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		delete(s.queues, q.name)
		q.drop()
		return nil, nil
	})
}

func (s *Server) handlePurgeQueue(_ context.Context, in *queueInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		now := time.Now()
		if now.Sub(q.purged) < purgeInterval {
			err := modeled("PurgeQueueInProgress", "Only one PurgeQueue operation on %s is allowed every 60 seconds.", q.name)
			err.status = 403
			return nil, err
		}
		q.purged = now
		for _, m := range q.messages {
			if !m.gone() {
				q.remove(m, Deleted, now)
			}
		}
		return nil, nil
	})
}

type getAttributesInput struct {
	QueueUrl       string
	AttributeNames []string
}

func (s *Server) handleGetQueueAttributes(_ context.Context, in *getAttributesInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		all := q.describe()
		wanted := map[string]string{}
		for _, name := range in.AttributeNames {
			value, ok := all[name]
			switch {
			case name == "All":
				wanted = all
			case ok:
				wanted[name] = value
			case !describable[name]:
				return nil, errAttributeName(name)
			}
		}
		return struct {
			Attributes map[string]string `json:",omitempty"`
		}{wanted}, nil
	})
}

type setAttributesInput struct {
	QueueUrl   string
	Attributes map[string]string
}

func (s *Server) handleSetQueueAttributes(_ context.Context, in *setAttributesInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		a, err := q.attributes.with(s, in.Attributes)
		if err != nil {
			return nil, err
		}
		q.attributes, q.modified = a, time.Now()
		return nil, nil
	})
}
