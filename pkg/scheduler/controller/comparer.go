package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Source is where a Comparer learns what the cache should have.
type Source interface {
	// Stored returns the objects that the watches have shown, and whether
	// these are all. They are not to be changed.
	Stored() (pods []*v1.Pod, nodes []*v1.Node, complete bool)
	// ReadPod reads a pod from the API server itself. It returns nil and no
	// error when there is none.
	ReadPod(ctx context.Context, namespace, name string) (*v1.Pod, error)
	// ReadNode does the same for a node.
	ReadNode(ctx context.Context, name string) (*v1.Node, error)
}

// Drift gets what each comparison has found.
type Drift interface {
	// Compared tells how many objects the cache had wrong, by kind ("pod" or
	// "node"), and how many of these have been put right.
	Compared(wrong, healed map[string]int)
}

// Comparer compares a cache with what the API server has, and heals it. Its
// method is not to be called by several goroutines at once.
type Comparer struct {
	Log    *zap.Logger
	Names  api.Names
	Cache  *cache.Cache
	Source Source
	Drift  Drift

	suspects map[cache.Difference]bool // found by the last comparison
}

// Compare looks for differences between the cache and what is put together from
// scratch of the objects that the watches have stored. Those that it finds for
// the second time, with nothing heard of the object in between, it takes to the
// API server, whose answer the cache gets.
func (c *Comparer) Compare(ctx context.Context) {
	pods, nodes, complete := c.Source.Stored()
	if !complete {
		return
	}
	c.Cache.Expire(time.Now())
	wrong, healed := make(map[string]int), make(map[string]int)
	suspects := make(map[cache.Difference]bool)
	for _, d := range c.Cache.Differences(c.rebuild(pods, nodes)) {
		suspects[d] = true
		if !c.suspects[d] {
			continue
		}
		switch c.settle(ctx, d) {
		case unsettled:
			wrong[kindOf(d)]++
		case corrected:
			wrong[kindOf(d)]++
			healed[kindOf(d)]++
		case right:
		}
	}
	c.suspects = suspects
	c.Drift.Compared(wrong, healed)
}

// What became of a difference.
type outcome uint8

const (
	unsettled outcome = iota // the API server has not said
	right                    // the cache is ahead of the watch, or has just heard of it
	corrected
)

// settle gives the cache what the API server has of what differs.
func (c *Comparer) settle(ctx context.Context, d cache.Difference) outcome {
	log := c.Log.With(zap.String("node", d.Node))
	if !d.OfNode() {
		log = log.With(zap.Stringer("pod", d.Pod), zap.String("uid", d.Pod.UID))
	}
	real, err := c.read(ctx, d)
	if err != nil {
		log.Warn("the cache seems to be wrong, and the API server does not tell", zap.Error(err))
		return unsettled
	}
	was, is, healed := c.Cache.Heal(d, real)
	if !healed {
		return right
	}
	log.Warn("the cache was wrong, and has been put right", zap.String("cached", describe(was)), zap.String("real", describe(is)))
	return corrected
}

// rebuild puts a cache together from scratch. Pods come first: a node is worked
// out when it becomes known, and then for all its pods at once.
func (c *Comparer) rebuild(pods []*v1.Pod, nodes []*v1.Node) *cache.Cache {
	feeder := &Feeder{Log: zap.NewNop(), Names: c.Names, Cache: cache.New()} // it has all been logged
	for _, pod := range pods {
		feeder.setPod(pod)
	}
	for _, node := range nodes {
		feeder.setNode(node)
	}
	return feeder.Cache
}

// read returns a cache of what the API server has of the object that differs.
func (c *Comparer) read(ctx context.Context, d cache.Difference) (*cache.Cache, error) {
	if d.OfNode() {
		node, err := c.Source.ReadNode(ctx, d.Node)
		if node == nil || err != nil {
			return cache.New(), err
		}
		return c.rebuild(nil, []*v1.Node{node}), nil
	}
	pod, err := c.Source.ReadPod(ctx, d.Pod.Namespace, d.Pod.Name)
	if pod == nil || err != nil {
		return cache.New(), err
	}
	return c.rebuild([]*v1.Pod{pod}, nil), nil
}

// describe says what a cache has of a pod or of a node.
func describe(e cache.Entry) string {
	var parts []string
	switch {
	case e.On != nil:
		for _, s := range e.On.Assignment.Shares {
			parts = append(parts, fmt.Sprintf("%s: %d", s.Device, s.Units))
		}
		return fmt.Sprintf("on %s with [%s], assumed %t, admitted %t", e.On.Node, strings.Join(parts, ", "), e.On.Assumed, e.On.Admitted)
	case e.Offered != nil:
		for _, d := range e.Offered.Devices {
			parts = append(parts, fmt.Sprintf("%s: %d, takes pods %t", d.UUID, d.Allocatable, d.Status.TakesPods()))
		}
		return fmt.Sprintf("offers [%s]", strings.Join(parts, "; "))
	case e.Coming != nil:
		return "nominated to " + e.Coming.Node
	default:
		return "not there"
	}
}

func kindOf(d cache.Difference) string {
	if d.OfNode() {
		return "node"
	}
	return "pod"
}
