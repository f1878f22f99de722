package scheduler

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

var podsResource = v1.SchemeGroupVersion.WithResource("pods")

// API is an API server in memory. Its methods are those that client-go's fake
// clientset wants of its store, and are called under the lock.
type API struct {
	mu      sync.Mutex
	version int64
	kinds   map[schema.GroupVersionResource]*kind
}

// kind is all objects of one resource.
type kind struct {
	objects  map[types.NamespacedName]object
	history  []change // all that there has been, for watches to go on from
	watchers map[*watcher]bool
}

// object is what all of them are.
type object interface {
	runtime.Object
	metav1.Object
}

// change is one write. Before is nil of a new object, after of one that is gone.
type change struct {
	version       int64
	before, after object
}

var _ clienttesting.ObjectTracker = (*API)(nil)

// NewAPI returns an API server with these nodes and pods.
func NewAPI(objects ...runtime.Object) (*API, error) {
	a := &API{kinds: make(map[schema.GroupVersionResource]*kind)}
	for _, o := range objects {
		if err := a.Add(o); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// kind returns the objects of a resource.
func (a *API) kind(gvr schema.GroupVersionResource) *kind {
	k, ok := a.kinds[gvr]
	if !ok {
		k = &kind{objects: make(map[types.NamespacedName]object), watchers: make(map[*watcher]bool)}
		a.kinds[gvr] = k
	}
	return k
}

// Add enters an object.
func (a *API) Add(o runtime.Object) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return err
	}
	of, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	gvr, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return a.Create(gvr, o, of.GetNamespace())
}

// Get returns a copy of an object.
func (a *API) Get(gvr schema.GroupVersionResource, ns, name string, _ ...metav1.GetOptions) (runtime.Object, error) {
	o, ok := a.kind(gvr).objects[types.NamespacedName{Namespace: ns, Name: name}]
	if !ok {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	return o.DeepCopyObject(), nil
}

// Create enters a new object.
func (a *API) Create(gvr schema.GroupVersionResource, o runtime.Object, ns string, _ ...metav1.CreateOptions) error {
	created, err := own(o)
	if err != nil {
		return err
	}
	created.SetNamespace(ns)
	if created.GetUID() == "" {
		created.SetUID(types.UID("uid-" + strconv.FormatInt(a.version+1, 10)))
	}
	k, key := a.kind(gvr), types.NamespacedName{Namespace: ns, Name: created.GetName()}
	if _, ok := k.objects[key]; ok {
		return apierrors.NewAlreadyExists(gvr.GroupResource(), key.Name)
	}
	a.write(k, key, nil, created)
	return nil
}

// Update changes an object, unless it is another or has changed since it was read.
func (a *API) Update(gvr schema.GroupVersionResource, o runtime.Object, ns string, _ ...metav1.UpdateOptions) error {
	after, err := own(o)
	if err != nil {
		return err
	}
	k, key := a.kind(gvr), types.NamespacedName{Namespace: ns, Name: after.GetName()}
	before, ok := k.objects[key]
	switch {
	case !ok:
		return apierrors.NewNotFound(gvr.GroupResource(), key.Name)
	case after.GetUID() != before.GetUID():
		return apierrors.NewConflict(gvr.GroupResource(), key.Name, fmt.Errorf("it has UID %s, not %s", before.GetUID(), after.GetUID()))
	case after.GetResourceVersion() != before.GetResourceVersion():
		return apierrors.NewConflict(gvr.GroupResource(), key.Name, errors.New("it has been changed since"))
	case reflect.DeepEqual(before, after):
		return nil // as the real one: nothing is written
	}
	a.write(k, key, before, after)
	return nil
}

// Patch is Update of what a patch has made.
func (a *API) Patch(gvr schema.GroupVersionResource, o runtime.Object, ns string, _ ...metav1.PatchOptions) error {
	return a.Update(gvr, o, ns)
}

// Apply is not among what the extender and kube-scheduler do.
func (*API) Apply(gvr schema.GroupVersionResource, _ runtime.Object, _ string, _ ...metav1.PatchOptions) error {
	return apierrors.NewMethodNotSupported(gvr.GroupResource(), "apply")
}

// Delete removes an object, or begins to: a pod that is bound ends gracefully where it
// says so and its deletion does not say otherwise.
func (a *API) Delete(gvr schema.GroupVersionResource, ns, name string, opts ...metav1.DeleteOptions) error {
	k, key := a.kind(gvr), types.NamespacedName{Namespace: ns, Name: name}
	before, ok := k.objects[key]
	if !ok {
		return apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	for _, o := range opts {
		if p := o.Preconditions; p != nil && p.UID != nil && *p.UID != before.GetUID() {
			return apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("it has UID %s, not %s", before.GetUID(), *p.UID))
		}
	}
	if pod, ok := before.(*v1.Pod); ok && pod.Spec.NodeName != "" && pod.Spec.TerminationGracePeriodSeconds != nil && *pod.Spec.TerminationGracePeriodSeconds > 0 && !atOnce(opts) {
		ending := pod.DeepCopy()
		now := metav1.Now()
		ending.DeletionTimestamp = &now
		return a.Update(gvr, ending, ns)
	}
	a.write(k, key, before, nil)
	return nil
}

// atOnce reports whether a deletion leaves no time.
func atOnce(opts []metav1.DeleteOptions) bool {
	return slices.ContainsFunc(opts, func(o metav1.DeleteOptions) bool { return o.GracePeriodSeconds != nil && *o.GracePeriodSeconds == 0 })
}

// own returns a copy that the server keeps.
func own(o runtime.Object) (object, error) {
	copied, ok := o.DeepCopyObject().(object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", o)
	}
	return copied, nil
}

// write enters a change and tells the watches.
func (a *API) write(k *kind, key types.NamespacedName, before, after object) {
	a.version++
	if after == nil {
		delete(k.objects, key)
	} else {
		after.SetResourceVersion(strconv.FormatInt(a.version, 10))
		k.objects[key] = after
	}
	c := change{version: a.version, before: before, after: after}
	k.history = append(k.history, c)
	for w := range k.watchers {
		w.tell(c)
	}
}

// List returns the objects that a field selector selects, in the order of their names.
func (a *API) List(gvr schema.GroupVersionResource, gvk schema.GroupVersionKind, ns string, opts ...metav1.ListOptions) (runtime.Object, error) {
	list, err := scheme.Scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err != nil {
		return nil, err
	}
	selector, err := selectorOf(opts)
	if err != nil {
		return nil, err
	}
	var found []object
	for _, o := range a.kind(gvr).objects {
		if (ns == "" || o.GetNamespace() == ns) && selected(selector, o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(x, y object) int {
		return cmp.Or(cmp.Compare(x.GetNamespace(), y.GetNamespace()), cmp.Compare(x.GetName(), y.GetName()))
	})
	copies := make([]runtime.Object, 0, len(found))
	for _, o := range found {
		copies = append(copies, o.DeepCopyObject())
	}
	if err := meta.SetList(list, copies); err != nil {
		return nil, err
	}
	listMeta, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	listMeta.SetResourceVersion(strconv.FormatInt(a.version, 10))
	return list, nil
}

// Watch tells of all changes after a resource version.
func (a *API) Watch(gvr schema.GroupVersionResource, _ string, opts ...metav1.ListOptions) (watch.Interface, error) {
	return a.watch(gvr, nil, opts...)
}

func (a *API) watch(gvr schema.GroupVersionResource, c *Conn, opts ...metav1.ListOptions) (watch.Interface, error) {
	selector, err := selectorOf(opts)
	if err != nil {
		return nil, err
	}
	if len(opts) != 1 {
		return nil, apierrors.NewBadRequest("watch from where?")
	}
	from, err := strconv.ParseInt(opts[0].ResourceVersion, 10, 64)
	if err != nil {
		return nil, apierrors.NewBadRequest("watch from where? " + err.Error())
	}
	k := a.kind(gvr)
	w := newWatcher(c, gvr, selector)
	w.stopped = func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(k.watchers, w)
	}
	at, _ := slices.BinarySearchFunc(k.history, from+1, func(c change, version int64) int { return cmp.Compare(c.version, version) })
	for _, c := range k.history[at:] {
		w.tell(c)
	}
	k.watchers[w] = true
	go w.run()
	return w, nil
}

func selectorOf(opts []metav1.ListOptions) (fields.Selector, error) {
	if len(opts) == 0 {
		return fields.Everything(), nil
	}
	return fields.ParseSelector(opts[0].FieldSelector)
}

// selected reports whether a field selector selects an object.
func selected(s fields.Selector, o object) bool {
	if s.Empty() {
		return true
	}
	return s.Matches(fieldsOf{o})
}

// fieldsOf are the fields of an object that selectors name.
type fieldsOf struct{ object }

// Has reports whether there is such a field.
func (f fieldsOf) Has(field string) bool { return f.Get(field) != "" }

// Get returns the field's value.
func (f fieldsOf) Get(field string) string {
	pod, _ := f.object.(*v1.Pod)
	switch {
	case field == "metadata.namespace":
		return f.GetNamespace()
	case field == "metadata.name":
		return f.GetName()
	case field == "spec.nodeName" && pod != nil:
		return pod.Spec.NodeName
	case field == "status.phase" && pod != nil:
		return string(pod.Status.Phase)
	}
	return ""
}

// bind answers a Binding: it sets the node and merges the annotations, once.
func (a *API) bind(b *v1.Binding) error {
	o, err := a.Get(podsResource, b.Namespace, b.Name)
	if err != nil {
		return err
	}
	pod := o.(*v1.Pod)
	conflict := func(text string) error {
		return apierrors.NewConflict(podsResource.GroupResource(), b.Name, errors.New(text))
	}
	switch {
	case b.UID != "" && b.UID != pod.UID:
		return conflict("it has UID " + string(pod.UID))
	case b.ResourceVersion != "" && b.ResourceVersion != pod.ResourceVersion:
		return conflict("it has been changed since")
	case pod.DeletionTimestamp != nil:
		return conflict("it is being deleted")
	case pod.Spec.NodeName != "":
		return conflict("it is on node " + pod.Spec.NodeName + " already")
	}
	pod.Spec.NodeName = b.Target.Name
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string)
	}
	maps.Copy(pod.Annotations, b.Annotations)
	pod.Status.Conditions = slices.DeleteFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled })
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodScheduled, Status: v1.ConditionTrue})
	return a.Update(podsResource, pod, b.Namespace)
}

// post answers what the extender posts by itself, for the fake clientset has no way for
// it: bindings.
func (a *API) post(r *http.Request) *http.Response {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Content-Type", runtime.ContentTypeJSON)
	answer := func(r *http.Request) error {
		var b v1.Binding
		if r.Method != http.MethodPost {
			return apierrors.NewMethodNotSupported(podsResource.GroupResource(), r.Method)
		}
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if want := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/binding", b.Namespace, b.Name); r.URL.Path != want {
			return apierrors.NewBadRequest(r.URL.Path + " is not " + want)
		}
		return a.bind(&b)
	}
	status := metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated}
	if err := answer(r); err != nil {
		status = apierrors.NewInternalError(err).Status()
		var known apierrors.APIStatus
		if errors.As(err, &known) {
			status = known.Status()
		}
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	recorder.WriteHeader(int(status.Code))
	if err := json.NewEncoder(recorder).Encode(status); err != nil {
		panic(err) // a recorder takes all
	}
	return recorder.Result()
}
