package controller

import (
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/cache"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Comparer compares a cache with the objects of the watches, and corrects the cache. It is not safe for
// concurrent use.
type Comparer struct {
	Log   *zap.Logger
	Names api.Names
	Cache *cache.Cache

	// Stored returns the objects that the watches have shown, and whether these are complete. The Comparer does
	// not change the objects.
	Stored func() (pods []*v1.Pod, nodes []*v1.Node, complete bool)
	// Compared receives the number of cached objects that were wrong and have been corrected, by kind ("pod" or
	// "node").
	Compared func(wrong map[string]int)

	suspects map[cache.Difference]bool // differences that the last comparison found
}

// Compare rebuilds a cache from the stored objects and finds the differences. If it finds a difference for
// the second time, and no event has changed the cached entry in between, it replaces the cached entry.
func (c *Comparer) Compare() {
	read := c.Cache.BeginRead()
	defer read.End()
	pods, nodes, complete := c.Stored()
	if !complete {
		return
	}
	c.Cache.Expire(time.Now())
	stored := cache.New()
	feeder := &Feeder{Log: zap.NewNop(), Names: c.Names, Cache: stored} // the handlers have logged all errors already
	// The pods come first, so that the cache computes the state of each node only once.
	for _, pod := range pods {
		feeder.setPod(pod)
	}
	for _, node := range nodes {
		feeder.setNode(node)
	}
	wrong := make(map[string]int)
	suspects := make(map[cache.Difference]bool)
	for _, d := range c.Cache.Differences(stored) {
		suspects[d] = true
		if !c.suspects[d] {
			continue
		}
		was, is, healed := read.Heal(d, stored)
		if !healed {
			continue
		}
		kind, log := "node", c.Log.With(zap.String("node", d.Node))
		if !d.OfNode() {
			kind, log = "pod", log.With(zap.Stringer("pod", d.Pod), zap.String("uid", d.Pod.UID))
		}
		wrong[kind]++
		log.Warn("the cache was wrong, and has been put right", zap.Stringer("cached", was), zap.Stringer("real", is))
	}
	c.suspects = suspects
	c.Compared(wrong)
}
