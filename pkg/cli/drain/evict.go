package drain

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpumem/gpumem/pkg/kube/api"
	"github.com/gpumem/gpumem/pkg/kube/evict"
)

const (
	// evictRetryInterval is the delay before the retry of a refused eviction, as in kubectl drain.
	evictRetryInterval = 5 * time.Second
	// deletionPollInterval is the interval between checks whether a pod is gone.
	deletionPollInterval = time.Second
)

// evict evicts pods concurrently and waits until they are gone. It prints the messages of kubectl drain.
func (o *Options) evict(ctx context.Context, pods []v1.Pod) error {
	timeout := o.timeout
	if timeout == 0 {
		timeout = math.MaxInt64
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	e := &eviction{Options: o, out: &lockedWriter{Writer: o.Out}, errOut: &lockedWriter{Writer: o.ErrOut}, timeout: timeout}
	ended := make(chan error, len(pods))
	for _, pod := range pods {
		go func() { ended <- e.evictPod(ctx, limited, pod) }()
	}
	var errs []error
	for range pods {
		if err := <-ended; err != nil {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// eviction is the common state of concurrent evictions.
type eviction struct {
	*Options
	out, errOut io.Writer
	timeout     time.Duration // of all evictions together
}

// evictPod requests the eviction of a pod until the API server accepts it, and waits until the pod is gone.
// Parameter limited is a context that ends retries and waiting. Parameter ctx also ends single requests.
func (e *eviction) evictPod(ctx, limited context.Context, pod v1.Pod) error {
	var seconds *int64
	if e.seconds >= 0 {
		seconds = new(int64(e.seconds))
	}
	for {
		fmt.Fprintf(e.out, "evicting pod %s/%s\n", pod.Namespace, pod.Name)
		if limited.Err() != nil {
			return fmt.Errorf("error when evicting pods/%q -n %q: global timeout reached: %v", pod.Name, pod.Namespace, e.timeout)
		}
		gone, err := evict.Pod(ctx, e.cluster.Client, api.Ref(&pod), seconds)
		ending := apierrors.IsForbidden(err) && apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause)
		switch {
		case gone:
			return nil
		case err == nil, ending && pod.DeletionTimestamp != nil: // a terminating pod cannot be evicted from a terminating namespace
			return e.waitUntilDeleted(ctx, limited, pod)
		case ending:
			fmt.Fprintf(e.errOut, "error when evicting pod %q from terminating namespace %q (will retry after %v): %v\n", pod.Name, pod.Namespace, evictRetryInterval, err)
		case evict.IsRefusal(err):
			fmt.Fprintf(e.errOut, "error when evicting pods/%q -n %q (will retry after %v): %v\n", pod.Name, pod.Namespace, evictRetryInterval, err)
		default:
			return fmt.Errorf("error when evicting pods/%q -n %q: %w", pod.Name, pod.Namespace, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limited.Done():
		case <-time.After(evictRetryInterval):
		}
		now, err := e.cluster.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.UID == pod.UID {
			pod = *now
		}
	}
}

// waitUntilDeleted waits until a pod is gone.
func (e *eviction) waitUntilDeleted(ctx, limited context.Context, pod v1.Pod) error {
	err := wait.PollUntilContextCancel(limited, deletionPollInterval, true, func(context.Context) (bool, error) {
		return evict.IsDeleted(ctx, e.cluster.Client, api.Ref(&pod))
	})
	if err != nil {
		return fmt.Errorf("error when waiting for pod %q in namespace %q to terminate: %w", pod.Name, pod.Namespace, err)
	}
	fmt.Fprintf(e.out, "pod/%s evicted\n", pod.Name)
	return nil
}

// lockedWriter serializes the writes of several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(p)
}
