package main

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpumem/gpumem/pkg/scheduler/lease"
)

// The durations of the election are Kubernetes' defaults.
const retryPeriod = 2 * time.Second

// errLostLease ends a replica that has lost the Lease. It restarts with a new cache.
var errLostLease = errors.New("the Lease is lost: another replica may lead now")

// election chooses the one replica that serves kube-scheduler. Two replicas would each allocate memory that
// the other has allocated and the watch has not shown yet.
type election struct {
	*lease.Lock
	elector *leaderelection.LeaderElector
}

// newElection returns the election of a replica. The replica calls drain before it releases the Lease.
func newElection(client kubernetes.Interface, o *options, log *zap.Logger, drain func()) (e *election, err error) {
	// A restarted container has the same pod name. Bindings of the previous process may still land, so the
	// new process must wait for the Lease like any other replica.
	identity := o.identity + "_" + string(uuid.NewUUID())
	config := leaderelection.LeaderElectionConfig{
		Name: o.leaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.leaseNamespace, Name: o.leaseName},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
			OnNewLeader: func(leader string) {
				log.Info("leader", zap.String("replica", leader), zap.Bool("self", leader == identity))
			},
		},
	}
	e = &election{}
	if e.Lock, err = lease.Watch(&config, time.Now, drain); err == nil {
		e.elector, err = leaderelection.NewLeaderElector(config)
	}
	return e, err
}

// Missing returns a message with the leader, unless this replica leads.
func (e *election) Missing() string {
	if _, alone := e.Leads(); alone {
		return ""
	}
	if leader := e.elector.GetLeader(); leader != "" {
		return "replica " + leader + " leads"
	}
	return "no replica leads yet"
}

// Run takes part in the election until the context is done, and then releases the Lease. It returns an error
// if the replica loses the Lease earlier.
func (e *election) Run(ctx context.Context) error {
	e.elector.Run(ctx)
	if ctx.Err() == nil {
		return errLostLease
	}
	return nil
}
