package binder

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/gpumem/gpumem/pkg/scheduler/lease"
)

// Silence is the gap between two requests after which another extender may have served requests in between. A
// change of the leader takes longer: a kube-scheduler that dies holds the Lease for fifteen seconds, and one
// that loses or releases it exits, and can lead again only after the next leader has lost the Lease.
const Silence = time.Second

// Handover is the time after the start of a lead during which a binding of the previous leader may still be
// written. Its kube-scheduler may send requests for five seconds after it has released the Lease, a Bind
// takes at most BindTimeout, and the API server takes five seconds more.
const Handover = 20 * time.Second

// turn tracks whether kube-scheduler has sent its requests only to this extender.
type turn struct {
	mu       sync.Mutex
	asked    time.Time // time of the last request
	silences int       // number of silences so far
	checked  int       // value of silences at the last read of the Lease
	lead     *lead     // result of that read
}

// lead is a period in which one kube-scheduler leads, as this process has observed it.
type lead struct {
	leader string    // name from Cluster.Leader; empty: unknown
	begun  time.Time // start of the lead, or the first read that showed it
	from   string    // the API server's resource version at that time

	mu    sync.Mutex
	read  map[string]bool // nodes whose pods were read since then
	shown bool            // the watch has shown all earlier bindings
}

// ask records the time of a request. After a silence, another kube-scheduler may have led.
func (t *turn) ask(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lease.Passed(t.asked, now) > Silence { // or both machines were paused, and another process may have led
		t.silences++
	}
	t.asked = now
}

// last returns the known lead and the number of silences. current means that the lead was read after the last
// silence.
func (t *turn) last() (l *lead, silences int, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lead, t.silences, t.lead != nil && t.checked == t.silences
}

// found records the lead that was read after the given number of silences.
func (t *turn) found(l *lead, silences int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if silences >= t.checked {
		t.lead, t.checked = l, silences
	}
}

// caughtUp reports whether the cache has all pods of a node that were bound before the lead.
func (l *lead) caughtUp(node string, shown func(revision string) bool) bool {
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

// caught records that the pods of a node were read.
func (l *lead) caught(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read[node] = true
}

// catchUp loads the pods that previous leaders bound to a node. A previous leader can exist only after a
// silence, so after each silence catchUp reads the Lease. If the leader has changed, or has led only for a
// short time, the watch may be a minute behind: client-go may wait that long before it retries an API server
// that was unavailable. Until the watch has shown all earlier changes, catchUp reads the pods of the node.
// Concurrent Binds share one read.
func (b *Binder) catchUp(ctx context.Context, node string) error {
	lead, err := b.leads(ctx)
	if err != nil || lead.caughtUp(node, b.Cluster.Shown) {
		return err
	}
	_, err = b.share("pods of "+node+" since "+lead.from, func() (any, error) {
		if lead.caughtUp(node, b.Cluster.Shown) {
			return nil, nil
		}
		return nil, b.readNode(ctx, node)
	})
	if err == nil {
		lead.caught(node)
	}
	return err
}

// share runs read, or returns the result of a concurrent read with the same key. If that read fails, possibly
// after a long time, share runs read once more.
func (b *Binder) share(key string, read func() (any, error)) (any, error) {
	result, err, shared := b.Reads.Do(key, read)
	if err != nil && shared {
		result, err, _ = b.Reads.Do(key, read)
	}
	return result, err
}

// look bounds a read only by LookTimeout, not by the caller's deadline: later callers may wait for the same
// read.
func look(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), LookTimeout)
}

// readNode reads the pods that are bound to a node into the cache.
func (b *Binder) readNode(ctx context.Context, node string) error {
	ctx, cancel := look(ctx)
	defer cancel()
	read := b.Cache.BeginRead()
	defer read.End()
	pods, err := b.Cluster.ReadPodsOn(ctx, node)
	if err != nil {
		return fmt.Errorf("read the pods of node %s: %w", node, err)
	}
	for _, pod := range pods {
		b.enter(read, pod)
	}
	return nil
}

// leads returns the current lead.
func (b *Binder) leads(ctx context.Context) (*lead, error) {
	if b.Leads != nil {
		return b.own(ctx)
	}
	last, silences, current := b.turn.last()
	if current {
		return last, nil
	}
	found, err := b.share("lead after silence "+strconv.Itoa(silences), func() (any, error) { return b.readLead(ctx) })
	if err != nil {
		return nil, err
	}
	return found.(*lead), nil
}

// readLead reads the current leader, unless that was read since the last silence.
func (b *Binder) readLead(ctx context.Context) (*lead, error) {
	last, silences, current := b.turn.last()
	if current {
		return last, nil
	}
	ctx, cancel := look(ctx)
	defer cancel()
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
		if last, err = b.newLead(ctx, leader, begun); err != nil {
			return nil, err
		}
	}
	b.turn.found(last, silences)
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

// errNotAlone is the error of a process that can no longer rely on its Lease.
var errNotAlone = errors.New("the Lease was not renewed in time: another may lead soon, or leads")

// own returns the lead of this process. All bindings of previous leaders have landed or failed, because no
// process sends a binding that could land when another process leads.
func (b *Binder) own(ctx context.Context) (*lead, error) {
	since, alone := b.Leads()
	if !alone {
		return nil, errNotAlone
	}
	known := func() *lead {
		if last, _, _ := b.turn.last(); last != nil && last.begun.Equal(since) {
			return last
		}
		return nil
	}
	if last := known(); last != nil {
		return last, nil
	}
	found, err := b.share("lead since "+since.String(), func() (any, error) {
		if last := known(); last != nil {
			return last, nil
		}
		ctx, cancel := look(ctx)
		defer cancel()
		begun, err := b.newLead(ctx, "", since)
		if err == nil {
			b.turn.found(begun, 0)
		}
		return begun, err
	})
	if err != nil {
		return nil, err
	}
	return found.(*lead), nil
}
