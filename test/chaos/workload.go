package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// workload makes pods and deletes them, in a number of places at once. Each
// place has one pod or Job at a time, so the cluster sets the pace.
type workload struct {
	client  kubernetes.Interface
	tracker *tracker
	nodes   []string
	seed    uint64
	created atomic.Int64
	calls   sync.RWMutex // held for writing, it keeps calls back: see pause
}

// run keeps a number of places busy until ctx ends.
func (w *workload) run(ctx context.Context, places int) {
	var group sync.WaitGroup
	for i := range places {
		group.Go(func() { w.place(ctx, i) })
	}
	group.Wait()
}

func (w *workload) place(ctx context.Context, i int) {
	r := rand.New(rand.NewPCG(w.seed, uint64(i)))
	for generation := 0; ctx.Err() == nil; generation++ {
		if r.IntN(12) == 0 {
			w.job(ctx, r, fmt.Sprintf("job-%d-%d", i, generation))
			continue
		}
		// Half of the pods follow another of the same name at once.
		name := fmt.Sprintf("pod-%d", i)
		if r.IntN(2) == 0 {
			name = fmt.Sprintf("pod-%d-%d", i, generation)
		}
		w.pod(ctx, r, name)
	}
}

// pod is the life of one pod.
func (w *workload) pod(ctx context.Context, r *rand.Rand, name string) {
	pod := newPod(r, name, w.nodes)
	// Drawn before anything is waited for, so that they follow from the seed.
	patience := time.Duration(r.Int64N(int64(20 * time.Second)))
	life := time.Duration(r.Int64N(int64(6 * time.Second)))
	end := r.IntN(10)

	uid, err := w.create(ctx, pod)
	if err != nil {
		return
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	// Some are deleted before they run, and some before they are bound.
	_ = w.tracker.wait(waiting, func(pods map[string]seen) bool {
		return pods[name].uid == uid && (pods[name].started || pods[name].ended)
	})
	cancel()
	sleep(ctx, life)
	switch {
	case end < 6: // with the grace that it asks for
		err = w.delete(ctx, name, uid, nil)
	case end < 9:
		err = w.delete(ctx, name, uid, new(int64(0)))
	default: // impatiently
		if err = w.delete(ctx, name, uid, new(int64(5))); err == nil {
			sleep(ctx, 300*time.Millisecond)
			err = w.delete(ctx, name, uid, new(int64(0)))
		}
	}
	if err == nil {
		_ = w.tracker.wait(ctx, func(pods map[string]seen) bool { return pods[name].uid != uid })
	}
}

func (w *workload) create(ctx context.Context, pod *v1.Pod) (types.UID, error) {
	var uid types.UID
	err := w.try(ctx, func(ctx context.Context) error {
		created, err := w.client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			// An answer was lost.
			created, err = w.client.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		}
		if err == nil {
			uid = created.UID
		}
		return err
	})
	if err == nil {
		w.created.Add(1)
	}
	return uid, err
}

func (w *workload) delete(ctx context.Context, name string, uid types.UID, grace *int64) error {
	if grace != nil && *grace == 0 {
		w.tracker.force(uid)
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &uid}}
	err := w.try(ctx, func(ctx context.Context) error {
		return w.client.CoreV1().Pods(namespace).Delete(ctx, name, options)
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// job is the life of one Job: it completes, or it is deleted before.
func (w *workload) job(ctx context.Context, r *rand.Rand, name string) {
	job := newJob(r, name)
	life := 3*time.Second + time.Duration(r.Int64N(int64(15*time.Second)))
	jobs := w.client.BatchV1().Jobs(namespace)
	err := w.try(ctx, func(ctx context.Context) error {
		_, err := jobs.Create(ctx, job, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return
	}
	w.created.Add(int64(*job.Spec.Completions))
	for deadline := time.Now().Add(life); time.Now().Before(deadline) && ctx.Err() == nil; sleep(ctx, time.Second) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		now, err := jobs.Get(call, name, metav1.GetOptions{})
		cancel()
		if err == nil && now.Status.Succeeded == *job.Spec.Completions {
			break
		}
	}
	background := metav1.DeletePropagationBackground
	_ = w.try(ctx, func(ctx context.Context) error { // the context is done, or it is gone
		return jobs.Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
	})
}

// pause keeps the workload from making and deleting anything until resume is
// called. It returns when no such call is under way.
func (w *workload) pause() (resume func()) {
	w.calls.Lock()
	return w.calls.Unlock
}

// try repeats a call until it is answered: the API server may be down.
func (w *workload) try(ctx context.Context, call func(context.Context) error) error {
	for {
		w.calls.RLock()
		one, cancel := context.WithTimeout(ctx, callTimeout)
		err := call(one)
		cancel()
		w.calls.RUnlock()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
			return err
		}
		if sleep(ctx, 300*time.Millisecond); ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// sleep waits for a time, or less when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
