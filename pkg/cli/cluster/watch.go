package cluster

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	// debounce is the delay that merges changes which happen together.
	debounce = 500 * time.Millisecond
	// quiet is the interval of calls without a change, because usage changes without events.
	quiet = 30 * time.Second
)

// OnChange calls f after changes of nodes or pods that the user may list, until the context is done or f
// fails.
func (r *Reader) OnChange(ctx context.Context, unseen *Unseen, f func(context.Context) error) error {
	touched := make(chan struct{}, 1)
	touch := func() {
		select {
		case touched <- struct{}{}:
		default:
		}
	}
	nameOnly := informers.WithTransform(func(obj any) (any, error) {
		if object, ok := obj.(metav1.Object); ok { // the handlers do not use the content
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID()}}, nil
		}
		return obj, nil
	})
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, 0, nameOnly, informers.WithNamespace(unseen.only()))
	watched := []cache.SharedIndexInformer{factory.Core().V1().Pods().Informer()}
	if !unseen.anyNodes() {
		watched = append(watched, factory.Core().V1().Nodes().Informer())
	}
	for _, informer := range watched {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { touch() },
			UpdateFunc: func(any, any) { touch() },
			DeleteFunc: func(any) { touch() },
		}); err != nil {
			return fmt.Errorf("watch for changes: %w", err)
		}
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-touched:
		case <-time.After(quiet):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(debounce):
		}
		if err := f(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
