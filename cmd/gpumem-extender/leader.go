package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The times of the election are those of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// errLostLease ends a replica that has led: another may lead already, and it
// starts again with a new cache.
var errLostLease = errors.New("the Lease is lost: another replica leads now")

// election is the part of one replica in the choice of the one that answers.
// Several that answer would each give away what the others have not seen yet.
type election struct {
	client          kubernetes.Interface
	namespace, name string // of the Lease
	identity        string
	log             *zap.Logger

	mu      sync.Mutex
	leading bool
	leader  string // whom the Lease names
}

// Missing says who leads, unless this replica does.
func (e *election) Missing() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.leading:
		return ""
	case e.leader == "":
		return "no replica leads yet"
	}
	return "replica " + e.leader + " leads"
}

// Run takes part until the context is done, and then gives the Lease back. It
// returns an error when the Lease is lost before.
func (e *election) Run(ctx context.Context) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: e.name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.namespace, Name: e.name},
			Client:     e.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
		},
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { e.set(func() { e.leading = true }) },
			OnStoppedLeading: func() { e.set(func() { e.leading = false }) },
			OnNewLeader: func(identity string) {
				e.set(func() { e.leader = identity })
				e.log.Info("leader", zap.String("replica", identity), zap.Bool("self", identity == e.identity))
			},
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election by Lease %s/%s: %w", e.namespace, e.name, err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return errLostLease
	}
	return nil
}

func (e *election) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}
