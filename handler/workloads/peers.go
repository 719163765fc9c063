package workloads

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
)

// The other pods of a gang, on nodes that do not end, are told as well if they ask for notices.
// They are looked up when that is news, with one request for all of them; nothing watches them.

const (
	// lists is how many gangs are looked up at the same time.
	lists        = 8
	listTimeout  = 10 * time.Second
	listAttempts = 3
	pageSize     = 500
)

// going are pods of a gang that leave one node.
type going struct {
	in   Interruption
	what string
	gang drain.Gang
	by   time.Time // when the first eviction begins at the latest; zero if there is no deadline
	pods []string
}

// goings are what a plan says of gangs whose other pods are to be told.
func goings(in Interruption, plan []drain.Decision) map[drain.Gang]going {
	var found map[drain.Gang]going
	for _, d := range plan {
		if d.Peers == (drain.Gang{}) || !d.Moves() {
			continue
		}
		if found == nil {
			found = map[drain.Gang]going{}
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

// tellPeers has the other pods of a gang told, soon. What comes in until they have been looked up
// needs no further request.
func (t *Teller) tellPeers(ctx context.Context, g going) {
	ctx = context.WithoutCancel(ctx) // each request has a timeout of its own
	t.mu.Lock()
	t.toPeers[g.gang] = append(t.toPeers[g.gang], g)
	t.mu.Unlock()
	t.lists.do(types.UID(fmt.Sprint(g.gang)), func() {
		t.mu.Lock()
		all := t.toPeers[g.gang]
		delete(t.toPeers, g.gang)
		t.mu.Unlock()
		if len(all) == 0 {
			return // the last task has taken them
		}
		for _, peer := range t.peers(ctx, g.gang) {
			for _, g := range all {
				t.tellPeer(ctx, g, peer)
			}
		}
	})
}

// peers are the pods of a gang that ask for a POST and whose nodes do not end. The others of it
// are told of the end of their own.
func (t *Teller) peers(ctx context.Context, gang drain.Gang) []*corev1.Pod {
	for attempt := 1; ; attempt++ {
		var peers []*corev1.Pod
		err := t.each(ctx, gang, func(pod *corev1.Pod) {
			asks := pod.Annotations[drain.NoticeAnnotation]
			runs := pod.DeletionTimestamp == nil && pod.Status.PodIP != "" && !drain.Finished(pod)
			if runs && asks != "" && asks != drain.NoticeFiles && drain.GangOf(pod) == gang && !t.opts.Leaves(pod.Spec.NodeName, gang) {
				peers = append(peers, pod)
			}
		})
		if err == nil {
			return peers
		}
		if attempt == listAttempts {
			t.opts.Logger.Warn().Err(err).Str("reason", "list pods of gang "+gang.Namespace+"/"+gang.Name).Msg("workloads are not told")
			return nil
		}
		time.Sleep(time.Duration(attempt) * time.Second)
	}
}

// each reads the pods that can be of a gang. No selector finds those of a PodGroup: they are looked
// for among all of the namespace, page by page.
func (t *Teller) each(ctx context.Context, gang drain.Gang, do func(*corev1.Pod)) error {
	for next := ""; ; {
		page, err := t.page(ctx, gang, next)
		if err != nil {
			return err
		}
		for i := range page.Items {
			do(&page.Items[i])
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

func (t *Teller) page(ctx context.Context, gang drain.Gang, next string) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	request := t.opts.Pods.Get().Namespace(gang.Namespace).Resource("pods").MaxRetries(0)
	if selector := gang.Selector(); selector != "" {
		request.Param("labelSelector", selector).Param("resourceVersion", "0") // is answered from the API server's cache, in one piece
	} else {
		request.Param("limit", strconv.Itoa(pageSize)).Param("continue", next)
	}
	list := &corev1.PodList{}
	return list, request.Do(ctx).Into(list)
}

func (t *Teller) tellPeer(ctx context.Context, g going, peer *corev1.Pod) {
	if peer.Spec.NodeName == g.in.Node {
		return
	}
	// Of two nodes that end the pod hears twice.
	_ = t.send(ctx, g.in, g.what, peer, peer.UID+types.UID("/"+g.in.Node), func(now time.Time) ([]byte, error) { return newPeerEvent(now, g, peer) }, nil)
}

// newsOfGang is what the other pods of the gang have to be told, or false; it is taken as told from
// then on.
func (t *Teller) newsOfGang(g going) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	gangs := t.gangs[g.in.Node]
	if gangs == nil {
		gangs = map[drain.Gang]*told{}
		t.gangs[g.in.Node] = gangs
	}
	was := gangs[g.gang]
	if was != nil && !was.tightened(g.in.Deadline, g.by) {
		return false
	}
	gangs[g.gang] = &told{deadline: g.in.Deadline, evictBy: g.by}
	return true
}
