package plan

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is a kind of things that have to be known.
type Kind string

const (
	// Watched for as long as a node needs them.
	PodsOfNode      Kind = "pods"        // of the node that the name says
	Budgets         Kind = "budgets"     // of a namespace
	DeploymentOfPod Kind = "deployment"  // with its pods
	Attachments     Kind = "attachments" // of volumes to nodes, all of them

	// Looked up, and again after a while.
	PreferencesOfNamespace Kind = "preferences"
	ConstraintsOfNamespace Kind = "constraints"
	ClaimOfPod             Kind = "claim"
)

// Subject is something of the cluster that has to be known. That of a namespace has no name of its own.
type Subject struct {
	Kind Kind
	Name types.NamespacedName
}

func bySubject(a, b Subject) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), byName(a.Name, b.Name)) }

func byName(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func ofNamespace(kind Kind, namespace string) Subject {
	return Subject{kind, types.NamespacedName{Namespace: namespace}}
}

func podsOf(node string) Subject {
	return Subject{PodsOfNode, types.NamespacedName{Name: node}}
}

// uses has the subject watched on behalf of the node, until the node is removed.
func (f *Fleet) uses(n *node, s Subject) {
	users := f.users[s]
	if users == nil {
		users = map[*node]struct{}{}
		f.users[s] = users
		f.todo.Watch = append(f.todo.Watch, s)
	}
	users[n] = struct{}{}
	n.uses[s] = struct{}{}
}

// leave ends the watches that only this node has used.
func (f *Fleet) leave(n *node) {
	for s := range n.uses {
		users := f.users[s]
		if delete(users, n); len(users) > 0 {
			continue
		}
		delete(f.users, s)
		if i := slices.Index(f.todo.Watch, s); i >= 0 { // that has not begun
			f.todo.Watch = slices.Delete(f.todo.Watch, i, i+1)
		} else {
			f.todo.Unwatch = append(f.todo.Unwatch, s)
		}
		switch s.Kind {
		case Budgets:
			delete(f.budgets, s.Name.Namespace)
		case DeploymentOfPod:
			delete(f.deployments, s.Name)
			f.recounts.drop(s.Name)
		case Attachments:
			f.attached = attachments{}
		}
	}
	for s, of := range f.lookups {
		delete(of.waiting, n)
		if !of.asked && !f.now.Before(of.at.Add(2*lookupTTL)) {
			delete(f.lookups, s)
		}
	}
}

// replanUsers has the nodes planned again that use the subject.
func (f *Fleet) replanUsers(s Subject) {
	for n := range f.users[s] {
		f.plans.sooner(n, f.now)
	}
}

const (
	// lookupTTL is after how long an answer is looked up again. Until that has been done it is used on,
	// for as long again: nothing becomes unknown in the middle of a drain.
	lookupTTL = 5 * time.Minute
	// lookupRetry is how long after a failure the next request is made.
	lookupRetry = 2 * time.Second
)

// lookup is what has been looked up of a subject.
type lookup struct {
	value   any
	at      time.Time // when that was; zero if it was not
	asked   bool      // it is being looked up, or will be
	waiting map[*node]struct{}
}

// lookUp is the answer, or false while it is looked up for the first time.
func lookUp[T any](f *Fleet, n *node, s Subject) (value T, ok bool) {
	of := f.lookups[s]
	if of == nil {
		of = &lookup{waiting: map[*node]struct{}{}}
		f.lookups[s] = of
	}
	if value, ok = of.value.(T); ok && f.now.Before(of.at.Add(lookupTTL)) {
		return value, true
	}
	of.waiting[n] = struct{}{}
	if !of.asked {
		of.asked = true
		f.todo.LookUp = append(f.todo.LookUp, s)
	}
	if ok && f.now.Before(of.at.Add(2*lookupTTL)) {
		return value, true
	}
	return *new(T), false
}

// LookedUp is the answer to a look-up: [Preferences], [NamespaceConstraints] or a [Claim].
type LookedUp struct {
	Subject Subject
	Value   any
}

func (e LookedUp) apply(f *Fleet) {
	if of := f.lookups[e.Subject]; of != nil {
		of.value, of.at = e.Value, f.now
		f.lookAgain(e.Subject)
	}
}

// LookUpFailed is that it could not be looked up. It is tried again.
type LookUpFailed struct{ Subject Subject }

func (e LookUpFailed) apply(f *Fleet) {
	if f.lookups[e.Subject] != nil {
		f.relook.set(e.Subject, f.now.Add(lookupRetry))
	}
}

// lookAgain has the nodes planned again that wait for the subject, or that ask for it again.
func (f *Fleet) lookAgain(s Subject) {
	of := f.lookups[s]
	if of == nil {
		return
	}
	of.asked = false
	for n := range of.waiting {
		f.plans.sooner(n, f.now)
	}
	clear(of.waiting)
}

// attachments are the VolumeAttachments of the cluster.
type attachments struct {
	listed, forbidden bool
	of                map[string]map[string]string // by node, and by the attachment's name, the PersistentVolume
}

// AttachmentsListed is that all VolumeAttachments have been seen.
type AttachmentsListed struct{}

func (AttachmentsListed) apply(f *Fleet) {
	f.attached.listed = true
	f.replanUsers(Subject{Kind: Attachments})
}

// AttachmentsForbidden is that they must not be read: then nobody waits for volumes.
type AttachmentsForbidden struct{}

func (AttachmentsForbidden) apply(f *Fleet) {
	f.attached.forbidden = true
	f.replanUsers(Subject{Kind: Attachments})
}

// AttachmentSeen is that a VolumeAttachment is there, or no more.
type AttachmentSeen struct {
	Name, Node string
	Volume     string // the PersistentVolume; empty for one that a pod names itself
	Gone       bool
}

func (e AttachmentSeen) apply(f *Fleet) {
	a := &f.attached
	if a.of == nil {
		a.of = map[string]map[string]string{}
	}
	volumes := a.of[e.Node]
	if volumes == nil {
		volumes = map[string]string{}
		a.of[e.Node] = volumes
	}
	_, had := volumes[e.Name]
	if e.Gone {
		delete(volumes, e.Name)
	} else {
		volumes[e.Name] = e.Volume
	}
	if len(volumes) == 0 {
		delete(a.of, e.Node)
	}
	if n := f.nodes[e.Node]; n != nil && had == e.Gone {
		if _, uses := n.uses[Subject{Kind: Attachments}]; uses && a.listed {
			f.plans.sooner(n, f.now)
		}
	}
}

// volumes is how many PersistentVolumes are still attached for pods that have left or have
// to leave; known is false as long as nobody knows.
func (f *Fleet) volumes(n *node) (count int, known bool) {
	attached := Subject{Kind: Attachments}
	for _, pod := range n.view.Moving {
		if HasVolumes(pod) {
			f.uses(n, attached)
			break
		}
	}
	_, uses := n.uses[attached]
	switch {
	case !uses, f.attached.forbidden:
		return 0, true
	case !f.attached.listed:
		return 0, false
	}
	left := map[string]struct{}{}
	for _, volume := range f.attached.of[n.name] {
		if volume != "" {
			left[volume] = struct{}{}
		}
	}
	for _, d := range n.view.Plan { // the volumes of pods that stay belong there
		if len(left) == 0 {
			break
		}
		if d.Moves() || Finished(d.Pod) {
			continue // the kubelet calls an evicted pod finished before it is gone
		}
		for _, name := range ClaimsOf(d.Pod) {
			if c, ok := lookUp[Claim](f, n, Subject{ClaimOfPod, name}); ok {
				delete(left, c.Volume)
			}
		}
	}
	return len(left), true
}
