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
	// debounceDelay is the delay between a change and OnChange's call of its function. It merges changes that happen
	// together.
	debounceDelay = 500 * time.Millisecond
	// usageInterval is the interval at which OnChange calls its function without a change, because usage changes
	// without events.
	usageInterval = 30 * time.Second
)

// OnChange calls f after changes of nodes or pods that the user may list, and after each usageInterval without a
// change. It returns when the context is done or f fails.
func (r *Reader) OnChange(ctx context.Context, limits *AccessLimits, f func(context.Context) error) error {
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	nameOnly := informers.WithTransform(func(obj any) (any, error) {
		if object, ok := obj.(metav1.Object); ok { // the handlers do not use the content
			return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID()}}, nil
		}
		return obj, nil
	})
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client, 0, nameOnly, informers.WithNamespace(limits.namespaceLimit()))
	watched := []cache.SharedIndexInformer{factory.Core().V1().Pods().Informer()}
	if !limits.hidesNodes() {
		watched = append(watched, factory.Core().V1().Nodes().Informer())
	}
	for _, informer := range watched {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify() },
			UpdateFunc: func(any, any) { notify() },
			DeleteFunc: func(any) { notify() },
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
		case <-changed:
		case <-time.After(usageInterval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(debounceDelay):
		}
		if err := f(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}
