// SPDX-License-Identifier: Apache-2.0
// guest/calls/user_object.h: references of graphs to user objects.
#ifndef CONSORT_GUEST_CALLS_USER_OBJECT_H_
#define CONSORT_GUEST_CALLS_USER_OBJECT_H_

#include <vector>

#include "guest/graph.h"

namespace consort::guest {

// The same references once more: for a clone or an executable graph. graph_mutex held.
void RetainAgain(const std::vector<RetainedObject>& objects);

// Appends the user objects of a graph and of its children. graph_mutex held.
void CollectObjects(const Graph& graph, std::vector<RetainedObject>* objects);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_USER_OBJECT_H_
