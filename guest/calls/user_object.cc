// SPDX-License-Identifier: Apache-2.0
// guest/calls/user_object.cc: objects of the program that live as long as graphs that use them.
#include "guest/calls/user_object.h"

#include <algorithm>

#include "gen/guest/calls.h"
#include "guest/calls/graph_store.h"
#include "guest/runtime.h"

namespace consort::guest {

void RetainAgain(const std::vector<RetainedObject>& objects) {
  for (const RetainedObject& retained : objects) {
    if (UserObject* object = GetRuntime()->user_objects.Find(retained.object_id); object != nullptr)
      object->count += retained.count;
  }
}

void CollectObjects(const Graph& graph, std::vector<RetainedObject>* objects) {
  Runtime* runtime = GetRuntime();
  objects->insert(objects->end(), graph.objects.begin(), graph.objects.end());
  for (uint64_t id : graph.nodes) {
    const GraphNode* node = runtime->graph_nodes.Find(id);
    if (node->work.type != CU_GRAPH_NODE_TYPE_GRAPH) continue;
    if (const Graph* child = runtime->graphs.Find(node->work.child_id); child != nullptr)
      CollectObjects(*child, objects);
  }
}

void ReleaseObjects(const std::vector<RetainedObject>& objects) {
  Runtime* runtime = GetRuntime();
  for (const RetainedObject& retained : objects) {
    UserObject last;
    {
      MutexLock lock(&runtime->graph_mutex);
      UserObject* object = runtime->user_objects.Find(retained.object_id);
      if (object == nullptr) continue;
      object->count -= retained.count < object->count ? retained.count : object->count;
      if (object->count != 0) continue;
      last = *object;
      runtime->user_objects.Destroy(last.id);
    }
    last.destroy(last.argument);
  }
}

namespace calls {

CUresult cuUserObjectCreate(CUuserObject* object_out, void* ptr, CUhostFn destroy,
                            unsigned int initialRefcount, unsigned int flags) {
  if (object_out == nullptr || destroy == nullptr || initialRefcount == 0 ||
      flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t id = GetRuntime()->user_objects.Create([&](UserObject* object, uint64_t new_id) {
    object->id = new_id;
    object->count = initialRefcount;
    object->destroy = destroy;
    object->argument = ptr;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *object_out = reinterpret_cast<CUuserObject>(id);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  UserObject* found = GetRuntime()->user_objects.Find(reinterpret_cast<uint64_t>(object));
  if (found == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  found->count += count;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count) {
  const uint64_t id = reinterpret_cast<uint64_t>(object);
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    const UserObject* found = GetRuntime()->user_objects.Find(id);
    if (found == nullptr || count == 0 || count > found->count) return CUDA_ERROR_INVALID_VALUE;
  }
  ReleaseObjects({{id, count}});
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags) {
  MutexLock lock(&GetRuntime()->graph_mutex);
  Graph* found = FindGraph(graph);
  UserObject* user = GetRuntime()->user_objects.Find(reinterpret_cast<uint64_t>(object));
  if (found == nullptr || user == nullptr || count == 0 ||
      (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == 0) user->count += count;
  found->objects.push_back({user->id, count});
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count) {
  const uint64_t id = reinterpret_cast<uint64_t>(object);
  {
    MutexLock lock(&GetRuntime()->graph_mutex);
    Graph* found = FindGraph(graph);
    if (found == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    uint32_t held = 0;
    for (const RetainedObject& retained : found->objects)
      held += retained.object_id == id ? retained.count : 0;
    if (held < count) return CUDA_ERROR_INVALID_VALUE;
    uint32_t left = count;
    for (RetainedObject& retained : found->objects) {
      if (retained.object_id != id) continue;
      const uint32_t taken = std::min(left, retained.count);
      retained.count -= taken;
      left -= taken;
    }
  }
  ReleaseObjects({{id, count}});
  return CUDA_SUCCESS;
}

}  // namespace calls
}  // namespace consort::guest
