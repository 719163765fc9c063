package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/drain/fair"
	"spot-handler/drain/narrow"
)

// The other pods of a gang, on nodes that do not end, are notified as well if they ask for notices.
// They are looked up when that is news, with one request for all of them; nothing watches them.

const (
	// lists is how many gangs are looked up at the same time.
	lists        = 8
	listTimeout  = 10 * time.Second
	listAttempts = 3

	// pageSize and mostPages bound how many pods are read for one gang; pageRead and pageKept, in
	// bytes, what arrives of one page, and what of that is used: some 2 KiB of most pods. Of a gang
	// with more than that no peer is notified.
	pageSize  = 250
	mostPages = 40
	pageRead  = 32 << 20
	pageKept  = 2 << 20
)

var errTooManyPods = fmt.Errorf("there are more than %d pods to look for them in", pageSize*mostPages)

// going are pods of a gang that leave one node.
type going struct {
	in   Interruption
	what string
	gang drain.Gang
	by   time.Time // when the first eviction begins at the latest; zero if there is no deadline
	pods []string

	only   string // the peers on that node alone are notified; empty is all
	unsure bool   // another process might have notified them, or not
}

// gangsOf are those of the pods, with what they might have been notified of.
func gangsOf(in Interruption, pods []*corev1.Pod) map[drain.Gang]going {
	found := map[drain.Gang]going{}
	for _, pod := range pods {
		if gang := drain.GangOf(pod); gang != (drain.Gang{}) {
			found[gang] = going{in: in, gang: gang, unsure: true}
		}
	}
	return found
}

// goings are what a plan says of gangs whose other pods are to be notified.
func goings(in Interruption, plan []drain.Decision) map[drain.Gang]going {
	found := map[drain.Gang]going{}
	for _, d := range plan {
		if d.Peers == (drain.Gang{}) || !d.Moves() {
			continue
		}
		g, more := found[d.Peers]
		if !more {
			g = going{in: in, what: typePeerNotice, gang: d.Peers, by: d.At}
		}
		if d.At.Before(g.by) {
			g.by = d.At
		}
		g.pods = append(g.pods, d.Pod.Name)
		found[d.Peers] = g
	}
	return found
}

// notifyPeers has the other pods of a gang notified, soon. What comes in until they have been looked up
// needs no further request.
func (t *Notifier) notifyPeers(ctx context.Context, g going) {
	t.mu.Lock()
	t.toPeers[g.gang] = append(t.toPeers[g.gang], g)
	t.mu.Unlock()
	t.lists.Do(ctx, fair.Task{Tenant: g.gang.Namespace, Who: types.UID(fmt.Sprint(g.gang)), Run: func() {
		t.mu.Lock()
		all := t.toPeers[g.gang]
		delete(t.toPeers, g.gang)
		t.mu.Unlock()
		unsure := func(g going) bool { return g.unsure }
		if slices.ContainsFunc(all, unsure) && t.silent(ctx, g.gang.Namespace) {
			all = slices.DeleteFunc(all, unsure)
		}
		if len(all) == 0 {
			return // the last task has taken them
		}
		peers, err := t.peers(ctx, g.gang)
		for _, g := range all {
			if err != nil && g.what == typePeerNotice && ctx.Err() == nil {
				t.opts.Events.PeersNotNotified(g.in.Node, g.gang.Namespace+"/"+g.gang.Name, err.Error())
			}
			for _, peer := range peers {
				t.notifyPeer(ctx, g, peer)
			}
		}
	}})
}

// read tries to read something, in several attempts unless there is too much of it.
func (t *Notifier) read(ctx context.Context, what string, read func() error) error {
	for attempt := 1; ; attempt++ {
		err := read()
		switch {
		case err == nil:
			return nil
		case attempt == listAttempts, errors.Is(err, narrow.ErrTooLong), errors.Is(err, errTooManyPods):
			t.opts.Logger.Warn().Err(err).Str("reason", what).Msg("workloads are not told")
			return err
		case smithytime.SleepWithContext(ctx, time.Duration(attempt)*time.Second) != nil:
			return err
		}
	}
}

// silent reports whether the namespace forbids that its pods be notified, or cannot be read.
func (t *Notifier) silent(ctx context.Context, namespace string) (silent bool) {
	err := t.read(ctx, "read namespace "+namespace, func() (err error) {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		silent, err = t.opts.Silent(ctx, namespace)
		return err
	})
	return silent || err != nil
}

// peers are the pods of a gang that ask for a POST and whose nodes do not end. The others of it
// are notified of the end of their own.
func (t *Notifier) peers(ctx context.Context, gang drain.Gang) (peers []*corev1.Pod, err error) {
	err = t.read(ctx, "list pods of gang "+gang.Namespace+"/"+gang.Name, func() error {
		peers = nil
		return t.each(ctx, gang, func(pod *corev1.Pod) {
			asks := pod.Annotations[drain.NoticeAnnotation]
			runs := pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && !drain.Finished(pod)
			if runs && asks != "" && asks != drain.NoticeFiles && drain.GangOf(pod) == gang && !t.opts.Leaves(pod.Spec.NodeName, gang) {
				pod.ObjectMeta = metav1.ObjectMeta{ // the rest can be long
					Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, Annotations: map[string]string{drain.NoticeAnnotation: asks},
				}
				peers = append(peers, pod)
			}
		})
	})
	if err != nil {
		return nil, err
	}
	return peers, nil
}

// each reads the pods that can be of a gang, page by page. No selector finds those of a PodGroup:
// they are looked for among all of the namespace.
func (t *Notifier) each(ctx context.Context, gang drain.Gang, do func(*corev1.Pod)) error {
	next := ""
	for range mostPages {
		page, err := t.page(ctx, gang, next)
		if err != nil {
			return err
		}
		for _, pod := range page.Items {
			do(&corev1.Pod{
				ObjectMeta: pod.Metadata,
				Spec:       corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, SchedulingGroup: pod.Spec.SchedulingGroup},
				Status:     corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP},
			})
		}
		if next = page.Metadata.Continue; next == "" {
			return nil
		}
	}
	return errTooManyPods
}

// page is what is read of some pods.
type page struct {
	Metadata metav1.ListMeta
	Items    []struct {
		Metadata metav1.ObjectMeta
		Spec     struct {
			NodeName        string
			HostNetwork     bool
			SchedulingGroup *corev1.PodSchedulingGroup
		}
		Status struct {
			Phase corev1.PodPhase
			PodIP string
		}
	}
}

func (t *Notifier) page(ctx context.Context, gang drain.Gang, next string) (p page, err error) {
	ctx, cancel := context.WithTimeout(narrow.Limit(ctx, pageRead, pageKept), listTimeout)
	defer cancel()
	request := t.opts.Pods.Get().Namespace(gang.Namespace).Resource("pods").MaxRetries(0).
		Param("limit", strconv.Itoa(pageSize)).Param("continue", next)
	if selector := gang.Selector(); selector != "" {
		request.Param("labelSelector", selector)
	}
	answer, err := request.Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(answer, &p)
	}
	return p, err
}

func (t *Notifier) notifyPeer(ctx context.Context, g going, peer *corev1.Pod) {
	if peer.Spec.NodeName == g.in.Node || g.only != "" && peer.Spec.NodeName != g.only {
		return
	}
	// Of two nodes that end the pod is notified twice.
	_ = t.send(ctx, t.peerPosts, g.in, g.what, peer, func(now time.Time) cloudEvent { return newPeerEvent(now, g, peer) }, nil)
}

// newsOfGangs are those of a node's gangs whose other pods have to be notified; they are taken as notified
// from then on.
func (t *Notifier) newsOfGangs(node string, found map[drain.Gang]going) (news []going) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gangs := t.gangs[node]
	if gangs == nil {
		gangs = map[drain.Gang]going{}
		t.gangs[node] = gangs
	}
	for gang, g := range found {
		was, known := gangs[gang]
		before := notified{event: was.in.Record.Event, deadline: was.in.Deadline, evictBy: was.by}
		if !known || before.outdated(g.in, g.by) {
			gangs[gang] = g
			news = append(news, g)
		}
	}
	return news
}

// goingsOf are the pods of a gang that leave any node.
func (t *Notifier) goingsOf(gang drain.Gang) (all []going) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, gangs := range t.gangs {
		if g, leaves := gangs[gang]; leaves {
			all = append(all, g)
		}
	}
	return all
}
