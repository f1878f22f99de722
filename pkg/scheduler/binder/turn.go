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

// Silence is how long kube-scheduler must have asked this extender nothing for
// another to have been asked meanwhile. That takes longer: one that dies keeps the
// Lease for fifteen seconds, and one that loses it or gives it up ends and has to
// wait until the next has led and lost it.
const Silence = time.Second

// Handover is how long after a lead has begun a binding of the one before may still be
// written: its kube-scheduler asks for up to five seconds after it has given the Lease
// away, a Bind takes BindTimeout at most, and the API server five seconds more.
const Handover = 20 * time.Second

// turn is the time in which kube-scheduler asks this extender and no other.
type turn struct {
	mu       sync.Mutex
	asked    time.Time // last
	silences int       // so far
	checked  int       // of them, after as many the Lease was read
	lead     *lead     // as it was then
}

// lead is the time in which one kube-scheduler leads, by what is known of it here.
type lead struct {
	leader string    // what the Lease says; empty: not known
	begun  time.Time // when it was first seen
	from   string    // the API server's resource version when it was first seen

	mu    sync.Mutex
	read  map[string]bool // nodes whose pods were read since
	shown bool            // the watch has shown all that was bound before
}

// ask counts a question. After a silence another may have led.
func (t *turn) ask(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lease.Passed(t.asked, now) > Silence { // or both machines were paused, and another has led meanwhile
		t.silences++
	}
	t.asked = now
}

// last returns the lead that is known, after how many silences, and whether it was
// looked at since the last of them.
func (t *turn) last() (l *lead, silences int, current bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lead, t.silences, t.lead != nil && t.checked == t.silences
}

// found records who leads after so many silences.
func (t *turn) found(l *lead, silences int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if silences >= t.checked {
		t.lead, t.checked = l, silences
	}
}

// caughtUp reports whether the cache has all of a node that was bound before the lead.
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

// catchUp has the cache know of all that others have bound to a node. They can have
// bound something only while another kube-scheduler led, so after a silence the Lease
// is read. Where the leader is another than before, or leads for a moment only, the watch
// may be behind by a minute: so long may client-go wait before it tries an API server again
// that was away. Until it has shown all that was written before, the pods of the node are
// read. Binds that come at once wait for one read.
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

// share returns what a read returns that is under way, or reads. Where the read of another
// failed, which may have hung for long, it reads once more.
func (b *Binder) share(key string, read func() (any, error)) (any, error) {
	result, err, shared := b.Reads.Do(key, read)
	if err != nil && shared {
		result, err, _ = b.Reads.Do(key, read)
	}
	return result, err
}

// look bounds a read by LookTimeout alone: others may wait for it that came later.
func look(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), LookTimeout)
}

// readNode has the cache know of the pods that are bound to a node.
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

// leads returns the lead in which kube-scheduler asks now.
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

// readLead reads who leads, unless that was read since the last silence.
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

// newLead returns a lead that has begun; nothing has been read for it.
func (b *Binder) newLead(ctx context.Context, leader string, begun time.Time) (*lead, error) {
	from, err := b.Cluster.Revision(ctx)
	if err != nil {
		return nil, fmt.Errorf("read how far the API server has got: %w", err)
	}
	return &lead{leader: leader, begun: begun, from: from, read: make(map[string]bool)}, nil
}

// errNotAlone is why a process that has led binds nothing.
var errNotAlone = errors.New("the Lease was not renewed in time: another may lead soon, or leads")

// own returns the lead of this process. What others have sent before it has landed: none of
// them sends when another may lead before that.
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
