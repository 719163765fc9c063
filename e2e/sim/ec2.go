package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// planLoss has everything happen in its time that EC2 does to a node.
func (w *World) planLoss(nth int, l Loss) {
	id := instanceID(l.Node)
	if l.Warned > 0 {
		w.announce(nth, l, interruption.RebalanceRecommendation, l.At-l.Warned, 0)
	}
	if l.Kind == interruption.ScheduledEvent {
		w.announceRetirement(nth, l)
	} else {
		w.announce(nth, l, l.Kind, l.At, l.Lead)
	}
	if l.Takes {
		w.at(l.At+l.Lead-l.Early, "take "+id, func() {
			if i := w.instances[id]; i != nil {
				w.end(i, true)
				if w.cloud != nil {
					w.cloud.Interrupt(id)
				}
			}
		})
	}
	if l.Cancel > 0 {
		w.at(l.Cancel, "cancel "+id, func() { w.cancel(l.Node) })
	}
}

// announce has EC2 say something about a node, and EventBridge put it into the queue.
func (w *World) announce(nth int, l Loss, kind interruption.Kind, at, lead time.Duration) {
	w.at(at, fmt.Sprintf("announce %s %s", l.Node, kind), func() {
		noticed := time.Now().Truncate(time.Second)
		if lead > 0 {
			lead -= time.Since(noticed) // it is stamped in whole seconds
		}
		w.judge.announced(l)
		if w.cloud != nil && kind == interruption.RebalanceRecommendation {
			w.recommend(instanceID(l.Node))
		}
		for n := range l.Copies {
			event, at := fmt.Sprintf("%08x-%04x-4000-8000-%012x", w.Scene.Seed&0xffffffff, nth, len(kind)), noticed
			if n > 0 && l.Renews {
				event, at = event[:len(event)-2]+"ff", at.Add(-renewedBy)
			}
			w.after(l.Delay+time.Duration(n)*l.Again, fmt.Sprintf("send %s %s %d", l.Node, kind, n), func() {
				w.tell(l, kind, at, at.Add(interruption.SpotNotice))
				if w.Scene.Intake == IntakeIMDS {
					return
				}
				w.note("ec2: %s of %s, event %s", kind, l.Node, event)
				w.judge.sent(w.Queue.Send(message(l, kind, event, at)), l.Node, kind)
			})
		}
	})
}

// message is what EventBridge makes of an announcement.
func message(l Loss, kind interruption.Kind, event string, at time.Time) string {
	instance := instanceID(l.Node)
	detailType, detail := "EC2 Spot Instance Interruption Warning", map[string]string{"instance-id": instance, "instance-action": l.action()}
	if kind == interruption.RebalanceRecommendation {
		detailType, detail = "EC2 Instance Rebalance Recommendation", map[string]string{"instance-id": instance}
	}
	return envelope("aws.ec2", detailType, event, at, detail)
}

// action is what EC2 does to an instance that it interrupts.
func (l Loss) action() string {
	if l.Hibernates {
		return interruption.ActionHibernate
	}
	return interruption.ActionTerminate
}

func envelope(source, detailType, event string, at time.Time, detail any) string {
	text, _ := json.Marshal(map[string]any{ // texts
		"version": "0", "id": event, "detail-type": detailType, "source": source, "account": "123456789012",
		"time": at.UTC().Format(time.RFC3339), "region": "eu-west-1", "resources": []string{}, "detail": detail,
	})
	return string(text)
}

// cancelTakes is how long a cancellation may take: an eviction that is under way is waited for.
const cancelTakes = 45 * time.Second

// cancel is an operator who cancels an interruption.
func (w *World) cancel(name string) {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, name)
	if node == nil || node.Annotations[interruption.Annotation] == "" {
		return
	}
	w.note("operator: cancels the interruption of %s", name)
	changed := node.DeepCopy()
	changed.Annotations[interruption.CancelAnnotation] = "true"
	if rec, _ := recordOf(node); !rec.Rehearsed() { // else what EC2 says stands
		w.judge.canceled(name)
	}
	w.Put(memapi.Nodes, changed, byOperator)
	since := w.since()
	w.after(cancelTakes, "cancelled "+name, func() { w.judge.judgeCancel(name, since) })
}

// AWS is one process's way to SQS, Auto Scaling, EC2 and the metadata service.
type AWS struct {
	world    *World
	client   *memapi.Client
	metadata *imdsemu.Server // of the node's instance; nil if the process does not run on a node
}

var errRefused = errors.New("dial tcp: connect: connection refused")

// Do implements the SDK's HTTPClient.
func (a AWS) Do(r *http.Request) (answer *http.Response, err error) {
	if err := a.reaches(r.Context()); err != nil {
		return nil, err
	}
	defer func() {
		if recover() == http.ErrAbortHandler {
			err = r.Context().Err()
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
		}
	}()
	out := &recorder{header: http.Header{}, code: http.StatusOK}
	// The real ones read the body before they answer.
	service, _, _ := strings.Cut(r.URL.Host, ".")
	switch {
	case a.metadata != nil:
		if err := a.readMetadata(r, out); err != nil {
			return nil, err
		}
	case service == "sqs":
		a.world.sqs.ServeHTTP(out, r)
	case a.world.cloud == nil:
		return nil, errRefused
	default:
		if err := a.judgeGroups(r); err != nil {
			return nil, err
		}
		a.world.cloud.ServeHTTP(out, r)
	}
	if err := a.reaches(r.Context()); err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: out.code, Status: http.StatusText(out.code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: out.header, Body: io.NopCloser(&out.body), ContentLength: int64(out.body.Len()), Request: r,
	}, nil
}

// judgeGroups holds a request to Auto Scaling or EC2 to the invariants.
func (a AWS) judgeGroups(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return err
	}
	a.world.Do(func() { a.world.judge.groupRequest(a.client.Name, form) })
	return nil
}
