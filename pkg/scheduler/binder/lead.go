package binder

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/scheduler/lease"
)

// IdleThreshold is the gap between two requests after which another extender may have served requests in
// between. A change of the leader takes longer: a kube-scheduler that dies still holds the Lease for fifteen
// seconds. A kube-scheduler that loses or releases the Lease exits, and can lead again only after the next
// leader has lost the Lease.
const IdleThreshold = time.Second

// Handover is the time after the start of a lead during which a binding of the previous leader may still be
// written. The previous kube-scheduler may send requests for five seconds after it has released the Lease, a
// Bind takes at most BindTimeout, and the API server takes five seconds more.
const Handover = 20 * time.Second

// ReadTimeout bounds one read from the API server. An API server whose cache is behind etcd waits three
// seconds for its cache, and then reads from etcd.
const ReadTimeout = 5 * time.Second

// leadTracker tracks the current lead. It divides time into terms: within a term, the leader cannot have
// changed; between two terms, another process may have led.
type leadTracker struct {
	mu        sync.Mutex
	requested time.Time // time of the last request
	since     time.Time // start of this process's own lead; zero if Leads is nil
	term      int       // number of terms so far
	readIn    int       // term in which the lead was read
	lead      *lead     // result of that read
}

// lead is the period in which one kube-scheduler leads, as this process has observed it.
type lead struct {
	leader string    // name from Cluster.Leader; empty: unknown
	begun  time.Time // start of the lead, or the first read that showed it
	from   string    // the API server's resource version when this value was created

	mu    sync.Mutex
	read  map[string]bool // nodes whose pods were read since this value was created
	shown bool            // the watch has shown all changes up to from
}

// recordRequest records the time of a request. If the previous request was too long ago, a new term begins.
func (t *leadTracker) recordRequest(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Passed includes a pause of the virtual machine: another process may have led during it.
	if lease.Passed(t.requested, now) > IdleThreshold {
		t.term++
	}
	t.requested = now
}

// recordStart records the start of this process's own lead. A new start begins a new term.
func (t *leadTracker) recordStart(since time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !since.Equal(t.since) {
		t.since = since
		t.term++
	}
}

// last returns the lead that was read last, and the present term. Result current reports whether that read
// was in the present term.
func (t *leadTracker) last() (l *lead, term int, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lead, t.term, t.lead != nil && t.readIn == t.term
}

// recordLead records the lead that was read in a term.
func (t *leadTracker) recordLead(l *lead, term int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if term >= t.readIn {
		t.lead, t.readIn = l, term
	}
}

// covers reports whether the cache has all pods that were bound to a node before the lead began.
func (l *lead) covers(node string, shown func(revision string) bool) bool {
	l.mu.Lock()
	done := l.shown || l.read[node]
	l.mu.Unlock()
	if done || !shown(l.from) {
		return done
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shown = true
	return true
}

// recordRead records that the pods of a node were read.
func (l *lead) recordRead(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read[node] = true
}

// loadNode loads the pods that previous leaders bound to a node. The leader can change only between terms, so
// loadNode reads it once in each term. If the leader has changed, or has led only for a short time, the watch
// may be a minute behind: client-go may wait that long before it retries an API server that was unavailable.
// Until the watch has shown all earlier changes, loadNode reads the pods of the node. Concurrent Binds share
// one read.
func (b *Binder) loadNode(ctx context.Context, node string) error {
	lead, err := b.currentLead(ctx)
	if err != nil || lead.covers(node, b.Cluster.Shown) {
		return err
	}
	_, err = b.shareRead(ctx, "pods of "+node+" since "+lead.from, func(ctx context.Context) (any, error) {
		if lead.covers(node, b.Cluster.Shown) {
			return nil, nil
		}
		return nil, b.readNode(ctx, node)
	})
	if err == nil {
		lead.recordRead(node)
	}
	return err
}

// shareRead calls read, or waits for a concurrent call with the same key and returns its result. If a shared
// call fails, possibly after a long time, shareRead calls read once more. Only ReadTimeout bounds a call, not
// the caller's deadline, because later callers may wait for the same call.
func (b *Binder) shareRead(ctx context.Context, key string, read func(context.Context) (any, error)) (any, error) {
	do := func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ReadTimeout)
		defer cancel()
		return read(ctx)
	}
	result, err, shared := b.Reads.Do(key, do)
	if err != nil && shared {
		result, err, _ = b.Reads.Do(key, do)
	}
	return result, err
}

// errNotAlone is the error of a process that can no longer rely on its Lease.
var errNotAlone = errors.New("the Lease was not renewed in time: another may lead soon, or leads")

// currentLead returns the current lead. If this process itself leads, all bindings of previous leaders have
// landed or failed, because no process sends a binding that could land when another process leads.
func (b *Binder) currentLead(ctx context.Context) (*lead, error) {
	if b.Leads != nil {
		since, alone := b.Leads()
		if !alone {
			return nil, errNotAlone
		}
		b.leads.recordStart(since)
	}
	last, term, current := b.leads.last()
	if current {
		return last, nil
	}
	found, err := b.shareRead(ctx, "lead in term "+strconv.Itoa(term), func(ctx context.Context) (any, error) {
		last, term, current := b.leads.last()
		if current {
			return last, nil
		}
		found, err := b.readLead(ctx, last)
		if err == nil {
			b.leads.recordLead(found, term)
		}
		return found, err
	})
	if err != nil {
		return nil, err
	}
	return found.(*lead), nil
}

// readLead reads the current leader. It returns last if the same process leads and has led for Handover, and
// otherwise a new value.
func (b *Binder) readLead(ctx context.Context, last *lead) (*lead, error) {
	if b.Leads != nil {
		return b.newLead(ctx, "", b.Now())
	}
	leader, err := b.Cluster.Leader(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which kube-scheduler leads: %w", err)
	}
	now := b.Now()
	if last == nil || leader == "" || leader != last.leader || now.Sub(last.begun) < Handover {
		begun := now
		if last != nil && leader == last.leader {
			begun = last.begun
		}
		return b.newLead(ctx, leader, begun)
	}
	return last, nil
}

// newLead returns a lead for which no node has been read yet.
func (b *Binder) newLead(ctx context.Context, leader string, begun time.Time) (*lead, error) {
	from, err := b.Cluster.Revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("read how far the API server has got: %w", err)
	}
	return &lead{leader: leader, begun: begun, from: from, read: make(map[string]bool)}, nil
}

// The following methods store the pods that they read in the cache, because the watch may be behind.

// readNode reads the pods that are bound to a node.
func (b *Binder) readNode(ctx context.Context, node string) error {
	read := b.Cache.BeginRead()
	defer read.End()
	pods, err := b.Cluster.ReadPodsOn(ctx, node)
	if err != nil {
		return fmt.Errorf("read the pods of node %s: %w", node, err)
	}
	for _, pod := range pods {
		b.storePod(read, pod)
	}
	return nil
}

// readPod reads the pod with the name of ref, which may have another UID by now; nil: there is none.
func (b *Binder) readPod(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	read := b.Cache.BeginRead()
	defer read.End()
	pod, err := b.Cluster.ReadPod(ctx, ref.Namespace, ref.Name)
	if err == nil && pod != nil && pod.Spec.NodeName != "" {
		b.storePod(read, pod)
	}
	return pod, err
}

// storePod adds a bound pod from a read to the cache, or removes the pod from the cache if it has ended.
func (b *Binder) storePod(read *cache.Read, pod *v1.Pod) {
	if !b.Names.Holds(pod) {
		return
	}
	log := b.Log.With(zap.Stringer("pod", api.Ref(pod)), zap.String("uid", string(pod.UID)), zap.String("node", pod.Spec.NodeName))
	if api.Terminal(pod) {
		if b.Cache.ForgetPod(string(pod.UID)) {
			log.Info("assumed pod forgotten: it has ended")
		}
		return
	}
	holding, err := b.Names.Holding(pod)
	if !holding.Request.Empty() && read.AddPod(pod.Spec.NodeName, holding, b.Now()) {
		log.Info("a read has shown a pod before the watch has", zap.NamedError("unreadable", err))
	}
}
