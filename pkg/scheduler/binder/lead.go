package binder

import (
	"context"
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

// IdleThreshold is a gap between two requests that is long enough for another extender to have served requests
// meanwhile. A change of the leader takes longer: a kube-scheduler that dies still holds the Lease for fifteen
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

// lead is the period in which one kube-scheduler leads, as this process has observed it. The binder divides
// time into terms: within a term, the leader cannot have changed; between two terms, another process may have
// led.
type lead struct {
	term   time.Time // start of the last term in which the lead was read
	leader string    // name from Cluster.Leader; empty: unknown
	begun  time.Time // start of the lead, or the first read that showed it
	from   string    // a resource version of the API server after the start of the lead
	read   *sync.Map // names of the nodes whose pods were read since
}

// RecordRequest records the time of a request of kube-scheduler. If the previous request was too long ago, a
// new term begins.
func (b *Binder) RecordRequest() {
	now := b.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	// Passed includes a pause of the virtual machine: another process may have led during it.
	if lease.Passed(b.requested, now) > IdleThreshold {
		b.term = now
	}
	b.requested = now
}

// loadNode loads the pods that previous leaders bound to a node, until the watch has shown all changes from
// before the lead.
func (b *Binder) loadNode(ctx context.Context, node string) error {
	lead, err := b.currentLead(ctx)
	if err != nil {
		return err
	}
	_, err = b.shareRead(ctx, "pods of "+node+" since "+lead.from, func(ctx context.Context) (any, error) {
		if _, known := lead.read.Load(node); known || b.Cluster.Shown(lead.from) {
			return nil, nil
		}
		read := b.Cache.BeginRead()
		defer read.End()
		pods, err := b.Cluster.ReadPodsOn(ctx, node)
		if err != nil {
			return nil, fmt.Errorf("read the pods of node %s: %w", node, err)
		}
		for _, pod := range pods {
			b.storePod(read, pod)
		}
		lead.read.Store(node, true)
		return nil, nil
	})
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

// currentLead returns the current lead. It reads the lead once in each term.
func (b *Binder) currentLead(ctx context.Context) (*lead, error) {
	b.mu.Lock()
	term := b.term
	b.mu.Unlock()
	if b.Leads != nil {
		term, _ = b.Leads()
	}
	found, err := b.shareRead(ctx, "lead in term "+strconv.FormatInt(term.UnixNano(), 10), func(ctx context.Context) (any, error) {
		last := b.lead.Load()
		if last != nil && last.term.Equal(term) {
			return last, nil
		}
		next, err := b.readLead(ctx, last, term)
		if err == nil {
			b.lead.CompareAndSwap(last, next) // unless the lead was read in another term meanwhile
		}
		return next, err
	})
	if err != nil {
		return nil, err
	}
	return found.(*lead), nil
}

// readLead reads the current leader. If the same process leads as before and has led for Handover, the last
// lead continues. If this process itself leads, all bindings of previous leaders have landed or failed,
// because no process sends a binding that could land when another process leads.
func (b *Binder) readLead(ctx context.Context, last *lead, term time.Time) (_ *lead, err error) {
	next := &lead{term: term, read: new(sync.Map)}
	if b.Leads == nil {
		if next.leader, err = b.Cluster.Leader(ctx); err != nil {
			return nil, fmt.Errorf("read which kube-scheduler leads: %w", err)
		}
	}
	next.begun = b.Now()
	if next.leader != "" && last != nil && next.leader == last.leader {
		if next.begun.Sub(last.begun) >= Handover {
			next.begun, next.from, next.read = last.begun, last.from, last.read
			return next, nil
		}
		next.begun = last.begun
	}
	if next.from, err = b.Cluster.Revision(ctx); err != nil {
		return nil, fmt.Errorf("read how far the API server has got: %w", err)
	}
	return next, nil
}

// readPod reads the pod with the name of ref, which may have another UID by now; nil: there is none. It stores
// a bound pod in the cache, because the watch may be behind.
func (b *Binder) readPod(ctx context.Context, ref placement.PodRef) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	read := b.Cache.BeginRead()
	defer read.End()
	pod, err := b.Cluster.ReadPod(ctx, ref.Namespace, ref.Name)
	if err == nil && pod != nil && pod.Spec.NodeName != "" {
		b.storePod(read, pod)
	}
	return pod, err
}

// storePod adds a bound pod with GPU memory from a read to the cache, or removes a pod that has ended.
func (b *Binder) storePod(read *cache.Read, pod *v1.Pod) {
	log := b.Log.With(zap.Stringer("pod", api.Ref(pod)), zap.String("uid", string(pod.UID)), zap.String("node", pod.Spec.NodeName))
	holding, err := b.Names.Holding(pod)
	switch {
	case api.Terminal(pod):
		if b.Cache.ForgetPod(holding.Pod.UID) {
			log.Info("assumed pod forgotten: it has ended")
		}
	case !holding.Request.Empty() && read.AddPod(pod.Spec.NodeName, holding, b.Now()):
		log.Info("a read has shown a pod before the watch has", zap.NamedError("unreadable", err))
	}
}
