package scheduler

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// Conn is the way of one process to the API server.
type Conn struct {
	api *API

	mu   sync.Mutex
	late func(before, after object) time.Duration // of a write; nil: none is
	down bool
	open map[*watcher]bool
}

// Connect returns a way of its own to the API server.
func (a *API) Connect() *Conn { return &Conn{api: a, open: make(map[*watcher]bool)} }

// Delay has all that is written from now on reach the watches so much later.
func (c *Conn) Delay(d time.Duration) {
	c.Late(func(_, _ object) time.Duration { return d })
}

// Late says of each write from now on how much later it reaches the watches. Those of
// the same watch that come after it wait for it.
func (c *Conn) Late(late func(before, after object) time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = late
}

// Cut ends all watches and refuses every request until Restore.
func (c *Conn) Cut() {
	c.mu.Lock()
	c.down = true
	open := c.open
	c.open = make(map[*watcher]bool)
	c.mu.Unlock()
	for w := range open {
		w.Stop()
	}
}

// Restore ends a Cut.
func (c *Conn) Restore() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = false
}

// watches reports whether there is a watch of a resource.
func (c *Conn) watches(gvr schema.GroupVersionResource) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.open {
		if w.resource == gvr {
			return true
		}
	}
	return false
}

// due says when a change that is written now reaches a watch.
func (c *Conn) due(written change) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late == nil {
		return time.Now()
	}
	return time.Now().Add(c.late(written.before, written.after))
}

// refused returns what a process gets that connects to nothing, while it does.
func (c *Conn) refused() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down {
		return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return nil
}

// Client returns a client that goes this way.
func (c *Conn) Client() (kubernetes.Interface, error) {
	fakes := &fake.Clientset{}
	objects := clienttesting.ObjectReaction(c.api)
	fakes.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if err := c.refused(); err != nil {
			return true, nil, err
		}
		c.api.mu.Lock()
		defer c.api.mu.Unlock()
		return objects(action)
	})
	fakes.AddWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		if err := c.refused(); err != nil {
			return true, nil, err
		}
		var opts metav1.ListOptions
		if w, ok := action.(clienttesting.WatchActionImpl); ok {
			opts = w.ListOptions
		}
		c.api.mu.Lock()
		defer c.api.mu.Unlock()
		w, err := c.api.watch(action.GetResource(), c, opts)
		return true, w, err
	})
	requests, err := rest.RESTClientFor(&rest.Config{
		Host: "http://api.invalid", APIPath: "/api", Transport: c, QPS: -1,
		ContentConfig: rest.ContentConfig{GroupVersion: &v1.SchemeGroupVersion, NegotiatedSerializer: scheme.Codecs.WithoutConversion()},
	})
	return client{Interface: fakes, requests: requests, conn: c}, err
}

// RoundTrip carries what the extender sends without the typed client.
func (c *Conn) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.refused(); err != nil {
		return nil, err
	}
	c.api.mu.Lock()
	defer c.api.mu.Unlock()
	return c.api.post(r), nil
}

// client is the fake one, whose requests that are not typed go to the API server too.
type client struct {
	kubernetes.Interface
	requests rest.Interface
	conn     *Conn
}

// IsWatchListSemanticsUnSupported says to reflectors that they have to list.
func (client) IsWatchListSemanticsUnSupported() bool { return true }

func (c client) CoreV1() corev1.CoreV1Interface {
	return core{CoreV1Interface: c.Interface.CoreV1(), requests: c.requests, conn: c.conn}
}

type core struct {
	corev1.CoreV1Interface
	requests rest.Interface
	conn     *Conn
}

func (c core) RESTClient() rest.Interface { return c.requests }

func (c core) Pods(namespace string) corev1.PodInterface {
	return pods{PodInterface: c.CoreV1Interface.Pods(namespace), conn: c.conn}
}

// pods are those of a namespace.
type pods struct {
	corev1.PodInterface
	conn *Conn
}

// Bind is how kube-scheduler's own plugin binds pods.
func (p pods) Bind(_ context.Context, b *v1.Binding, _ metav1.CreateOptions) error {
	if err := p.conn.refused(); err != nil {
		return err
	}
	p.conn.api.mu.Lock()
	defer p.conn.api.mu.Unlock()
	return p.conn.api.bind(b)
}

// watcher is one watch. It keeps what its reader has not taken yet.
type watcher struct {
	conn     *Conn
	resource schema.GroupVersionResource
	selector fields.Selector
	result   chan watch.Event
	done     chan struct{}
	stop     sync.Once
	stopped  func()

	mu    sync.Mutex
	queue []delayed
	more  chan struct{} // has room for one: there is more in the queue
}

// delayed is an event that is told of at a time.
type delayed struct {
	event watch.Event
	at    time.Time
}

func newWatcher(c *Conn, gvr schema.GroupVersionResource, s fields.Selector) *watcher {
	w := &watcher{conn: c, resource: gvr, selector: s, result: make(chan watch.Event), done: make(chan struct{}), more: make(chan struct{}, 1)}
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open[w] = true
	}
	return w
}

// tell enters a change as it looks through the selector.
func (w *watcher) tell(c change) {
	was, is := c.before != nil && selected(w.selector, c.before), c.after != nil && selected(w.selector, c.after)
	var event watch.Event
	switch {
	case is && was:
		event = watch.Event{Type: watch.Modified, Object: c.after}
	case is:
		event = watch.Event{Type: watch.Added, Object: c.after}
	case was:
		last := c.before.DeepCopyObject().(object)
		last.SetResourceVersion(strconv.FormatInt(c.version, 10))
		event = watch.Event{Type: watch.Deleted, Object: last}
	default:
		return
	}
	at := time.Now()
	if w.conn != nil {
		at = w.conn.due(c)
	}
	w.mu.Lock()
	w.queue = append(w.queue, delayed{event, at})
	w.mu.Unlock()
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// take returns what is first in the queue.
func (w *watcher) take() (first delayed, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return delayed{}, false
	}
	first, w.queue = w.queue[0], w.queue[1:]
	return first, true
}

func (w *watcher) run() {
	defer close(w.result)
	for {
		next, ok := w.take()
		if !ok {
			select {
			case <-w.more:
				continue
			case <-w.done:
				return
			}
		}
		if wait := time.Until(next.at); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-w.done:
				timer.Stop()
				return
			}
		}
		next.event.Object = next.event.Object.DeepCopyObject()
		select {
		case w.result <- next.event:
		case <-w.done:
			return
		}
	}
}

// Stop ends the watch.
func (w *watcher) Stop() {
	w.stop.Do(func() {
		close(w.done)
		if w.conn != nil {
			w.conn.mu.Lock()
			delete(w.conn.open, w)
			w.conn.mu.Unlock()
		}
		w.stopped()
	})
}

// ResultChan returns what the watch tells of.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }
