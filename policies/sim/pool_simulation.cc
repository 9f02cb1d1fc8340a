// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/pool_simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <queue>
#include <utility>

#include "policies/schedule/policy.h"
#include "policies/sim/random.h"
#include "policies/sim/simulated_gpu.h"

namespace consort::sim {
namespace {

using placement::Decision;
using placement::Gid;
using schedule::Phase;

// Longer than any simulation, and far from the end of the type.
constexpr double kLongest = 4e18;

Nanos ToNanos(double nanos) { return static_cast<Nanos>(std::min(nanos, kLongest)); }

double Seconds(Nanos nanos) { return static_cast<double>(nanos) / kSecond; }

// The stages of a cycle, in their order.
enum class Stage : uint8_t { kCpu, kToDevice, kKernel, kToHost, kOver };

struct Thread {
  uint32_t live = 0;
  Stage stage = Stage::kCpu;
};

struct Live {
  uint64_t id = 0;
  uint32_t stream = 0;
  Gid gid = placement::kNoGid;
  SimulatedGpu::Guest guest = 0;
  uint32_t cycles_begun = 0;
  uint32_t threads = 0;  // that are not over
  bool remote = false;
  Nanos arrived = 0;
  Nanos placed = 0;
};

struct Gpu {
  Gpu(uint32_t model, const SimulatedGpu::Settings& settings,
      std::unique_ptr<schedule::Policy> policy)
      : model(model), device(settings, std::move(policy)) {}
  uint32_t model;
  SimulatedGpu device;
  Nanos told = SimulatedGpu::kNever;  // the end for which an event is in the queue
};

enum class What : uint8_t { kArrival, kCpuOver, kDevice };

struct Event {
  Nanos time = 0;
  uint64_t sequence = 0;  // of equal times the older goes first
  What what = What::kArrival;
  uint32_t index = 0;                         // stream, thread, GPU
  bool operator<(const Event& other) const {  // a heap has its largest in front
    return time != other.time ? time > other.time : sequence > other.sequence;
  }
};

class PoolSimulation {
 public:
  PoolSimulation(const PoolScenario& scenario, std::unique_ptr<placement::Mapper> mapper)
      : scenario_(scenario), mapper_(std::move(mapper)) {}

  void Prepare() {
    schedule::Options scheduling;
    scheduling.batches_in_flight = scenario_.batches_in_flight;
    Gid gid = 0;
    for (size_t node = 0; node < scenario_.nodes.size(); ++node) {
      for (size_t device = 0; device < scenario_.nodes[node].size(); ++device) {
        const uint32_t model = scenario_.nodes[node][device];
        const GpuModel& of = scenario_.models[model];
        mapper_->AddGpu({.gid = ++gid,
                         .node = static_cast<placement::NodeId>(node),
                         .local_device = static_cast<uint32_t>(device),
                         .model = model,
                         .weight = WeightOf(of),
                         .memory_total = of.memory,
                         .memory_bandwidth = of.memory_bandwidth});
        gpus_.push_back(std::make_unique<Gpu>(
            model,
            SimulatedGpu::Settings{.packed = scenario_.packed,
                                   .copy_engines = of.copy_engines,
                                   .kernels_max = of.kernels_max,
                                   .context_switch = scenario_.context_switch},
            schedule::MakePolicy(scenario_.scheduler, scheduling)));
      }
    }
    for (const ProgramModel& program : scenario_.programs) {
      for (const GpuModel& model : scenario_.models) {
        kernels_.push_back(KernelOn(scenario_, program, model));
      }
    }
    uint32_t tenants = 0;
    for (size_t i = 0; i < scenario_.streams.size(); ++i) {
      const StreamModel& stream = scenario_.streams[i];
      tenants = std::max(tenants, stream.tenant + 1);
      arrivals_.push_back({Random(scenario_.seed * 1000003 + i), 0, stream.start});
      if (stream.count > 0) NextArrival(static_cast<uint32_t>(i));
    }
    result_.tenant_seconds.resize(tenants);
  }

  PoolResult Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      if (scenario_.stop > 0 && event.time > scenario_.stop) break;
      events_.pop();
      now_ = event.time;
      switch (event.what) {
        case What::kArrival:
          Arrive(event.index);
          break;
        case What::kCpuOver:
          Next(event.index);
          break;
        case What::kDevice:
          DeviceEvent(event.index);
          break;
      }
    }
    if (scenario_.stop > 0) Stop();
    result_.never_placed = pending_.size();
    result_.end = now_;
    for (const auto& gpu : gpus_) {
      result_.busy_seconds.push_back(gpu->device.busy() / kSecond);
    }
    return std::move(result_);
  }

 private:
  struct Arrivals {
    Random random;
    uint64_t made = 0;
    Nanos next = 0;
  };

  void Stop() {
    now_ = scenario_.stop;
    for (const auto& gpu : gpus_) gpu->device.Idle(now_);
    for (const Live& live : live_) {
      if (live.gid == placement::kNoGid) continue;
      result_.tenant_seconds[scenario_.streams[live.stream].tenant] +=
          gpus_[live.gid - 1]->device.DeviceTime(live.guest) / kSecond;
    }
  }

  // A calibration would find how fast kernels are that fill the device.
  double WeightOf(const GpuModel& model) const {
    const GpuModel& first = scenario_.models[0];
    return model.sms * model.sm_speed / (first.sms * first.sm_speed);
  }

  void Push(Nanos time, What what, uint32_t index) {
    events_.push({.time = time, .sequence = ++sequence_, .what = what, .index = index});
  }

  void NextArrival(uint32_t stream) {
    Arrivals& arrivals = arrivals_[stream];
    const double gap = arrivals.random.Exponential(scenario_.streams[stream].gap_seconds);
    arrivals.next = ToNanos(static_cast<double>(arrivals.next) + gap * kSecond);
    ++arrivals.made;
    Push(arrivals.next, What::kArrival, stream);
  }

  const ProgramModel& ProgramOf(const Live& live) const {
    return scenario_.programs[scenario_.streams[live.stream].program];
  }

  placement::Application Described(const Live& live) const {
    const StreamModel& stream = scenario_.streams[live.stream];
    return {.id = live.id,
            .program = stream.program,
            .tenant = stream.tenant,
            .node = stream.node,
            .memory = ProgramOf(live).memory,
            .device = stream.device};
  }

  void Arrive(uint32_t stream) {
    uint32_t index = static_cast<uint32_t>(live_.size());
    if (free_live_.empty()) {
      live_.emplace_back();
    } else {
      index = free_live_.back();
      free_live_.pop_back();
    }
    live_[index] = Live{.id = ++ids_, .stream = stream, .arrived = now_};
    if (arrivals_[stream].made < scenario_.streams[stream].count) NextArrival(stream);
    if (!TryPlace(index)) pending_.push_back(index);
  }

  bool TryPlace(uint32_t index) {
    Live& live = live_[index];
    const placement::Application application = Described(live);
    const Decision decision = mapper_->Place(application, now_);
    if (decision.outcome != Decision::Outcome::kPlaced) return false;
    mapper_->Bind(application, decision.gid, now_);
    ++result_.decisions;
    result_.by_feedback += decision.by_feedback;
    result_.remote += !decision.local;
    live.gid = decision.gid;
    live.remote = !decision.local;
    live.placed = now_;
    const StreamModel& stream = scenario_.streams[live.stream];
    Gpu& gpu = *gpus_[live.gid - 1];
    live.guest = gpu.device.Join(stream.tenant, stream.weight, now_);
    const ProgramModel& program = ProgramOf(live);
    const uint32_t threads = std::min(program.threads, program.cycles);
    live.cycles_begun = live.threads = threads;
    for (uint32_t i = 0; i < threads; ++i) Begin(NewThread(index));
    return true;
  }

  uint32_t NewThread(uint32_t live) {
    uint32_t index = static_cast<uint32_t>(threads_.size());
    if (free_threads_.empty()) {
      threads_.emplace_back();
    } else {
      index = free_threads_.back();
      free_threads_.pop_back();
    }
    threads_[index] = Thread{.live = live};
    return index;
  }

  // Those that wait are tried oldest first; only so many, as one that does not fit may be
  // followed by many like it.
  void TryPending() {
    constexpr size_t kTried = 32;
    size_t tried = 0;
    for (auto each = pending_.begin(); each != pending_.end() && tried < kTried; ++tried) {
      each = TryPlace(*each) ? pending_.erase(each) : each + 1;
    }
  }

  // The stage that the thread is in begins; those without length are over at once.
  void Begin(uint32_t index) {
    while (true) {
      Thread& thread = threads_[index];
      Live& live = live_[thread.live];
      const ProgramModel& program = ProgramOf(live);
      SimulatedGpu::Work work;
      switch (thread.stage) {
        case Stage::kCpu: {
          double delay = static_cast<double>(program.cpu);
          if (live.remote) {
            delay += static_cast<double>(program.calls) * static_cast<double>(scenario_.round_trip);
          }
          if (delay > 0) {
            return Push(ToNanos(static_cast<double>(now_) + delay), What::kCpuOver, index);
          }
          break;
        }
        case Stage::kToDevice:
          work = {.phase = Phase::kToDevice, .length = CopyTime(live, program.to_device)};
          break;
        case Stage::kKernel: {
          const KernelOnModel& kernel = KernelOf(live);
          work = {.phase = Phase::kKernel, .length = kernel.duration, .demand = kernel.demand};
          break;
        }
        case Stage::kToHost:
          work = {.phase = Phase::kToHost, .length = CopyTime(live, program.to_host)};
          break;
        case Stage::kOver:
          free_threads_.push_back(index);
          if (--live.threads == 0) End(thread.live);
          return;
      }
      if (work.length > 0) {
        work.thread = index;
        Gpu& gpu = *gpus_[live.gid - 1];
        gpu.device.Submit(live.guest, work, now_);
        return Tell(live.gid - 1);
      }
      Step(&thread);
    }
  }

  void Step(Thread* thread) {
    thread->stage = static_cast<Stage>(static_cast<int>(thread->stage) + 1);
    Live& live = live_[thread->live];
    if (thread->stage == Stage::kOver && live.cycles_begun < ProgramOf(live).cycles) {
      ++live.cycles_begun;
      thread->stage = Stage::kCpu;
    }
  }

  void Next(uint32_t index) {
    Step(&threads_[index]);
    Begin(index);
  }

  const KernelOnModel& KernelOf(const Live& live) const {
    return kernels_[scenario_.streams[live.stream].program * scenario_.models.size() +
                    gpus_[live.gid - 1]->model];
  }

  double CopyTime(const Live& live, Bytes bytes) const {
    double bandwidth = scenario_.models[gpus_[live.gid - 1]->model].copy_bandwidth;
    if (live.remote) bandwidth = std::min(bandwidth, scenario_.network_bandwidth);
    return static_cast<double>(bytes) / bandwidth * kSecond;
  }

  // The queue learns of the GPU's next end, if it is sooner than it knows.
  void Tell(uint32_t gpu) {
    const Nanos end = gpus_[gpu]->device.NextEnd();
    if (end >= gpus_[gpu]->told) return;
    gpus_[gpu]->told = end;
    Push(end, What::kDevice, gpu);
  }

  void DeviceEvent(uint32_t index) {
    Gpu& gpu = *gpus_[index];
    if (gpu.told != now_) return;  // a sooner one has come in between, and told anew
    gpu.told = SimulatedGpu::kNever;
    if (gpu.device.NextEnd() <= now_) {
      Next(gpu.device.Finish(now_));
      gpu.device.Continue(now_);
    }
    Tell(index);
  }

  void End(uint32_t index) {
    const Live live = live_[index];
    const ProgramModel& program = ProgramOf(live);
    const StreamModel& stream = scenario_.streams[live.stream];
    Gpu& gpu = *gpus_[live.gid - 1];
    result_.tenant_seconds[stream.tenant] += gpu.device.DeviceTime(live.guest) / kSecond;
    gpu.device.Leave(live.guest, now_);
    mapper_->Unbind(live.id);
    Feed(live, program);
    result_.applications.push_back({.stream = live.stream,
                                    .gid = live.gid,
                                    .arrived = live.arrived,
                                    .placed = live.placed,
                                    .ended = now_});
    live_[index] = Live{};
    free_live_.push_back(index);
    TryPending();
  }

  // What a worker would report: its times without those in which it waited for others.
  void Feed(const Live& live, const ProgramModel& program) {
    const double cycles = program.cycles;
    const KernelOnModel& kernel = KernelOf(live);
    const double gpu_time = cycles * kernel.duration;
    const double transfer_time =
        cycles * (CopyTime(live, program.to_device) + CopyTime(live, program.to_host));
    const double runtime = (gpu_time + transfer_time + cycles * static_cast<double>(program.cpu)) /
                           std::min(program.threads, program.cycles);
    if (runtime < 1) return;
    const double touched =
        cycles * program.bandwidth * Seconds(program.kernel);  // bytes, on every model
    const auto transferred = static_cast<Bytes>(
        cycles * (static_cast<double>(program.to_device) + static_cast<double>(program.to_host)));
    const double seconds = runtime / kSecond;
    mapper_->Record(
        {.program = scenario_.streams[live.stream].program,
         .model = gpus_[live.gid - 1]->model,
         .runtime = ToNanos(runtime),
         .gpu_time = ToNanos(gpu_time),
         .transfer_time = ToNanos(transfer_time),
         .transferred = transferred,
         .bandwidth = gpu_time > 0 ? MeasuredPart(live) * touched / (gpu_time / kSecond) : 0,
         .sensitivity = static_cast<double>(transferred) / scenario_.network_bandwidth / seconds +
                        cycles * program.calls * Seconds(scenario_.round_trip) / seconds},
        now_);
  }

  // Of the bandwidth that a program uses: what hosts take it for.
  double MeasuredPart(const Live& live) const {
    if (!scenario_.bandwidth_measured) return 0;
    // Not a seed of a stream.
    Random random(~scenario_.seed * 1000003 + scenario_.streams[live.stream].program);
    return 1 + scenario_.bandwidth_error * (2 * random.Even() - 1);
  }

  const PoolScenario& scenario_;
  const std::unique_ptr<placement::Mapper> mapper_;
  std::vector<std::unique_ptr<Gpu>> gpus_;  // by gid - 1
  std::vector<KernelOnModel> kernels_;      // program * models + model
  std::vector<Arrivals> arrivals_;
  std::vector<Live> live_;
  std::vector<uint32_t> free_live_;
  std::vector<Thread> threads_;
  std::vector<uint32_t> free_threads_;
  std::deque<uint32_t> pending_;
  std::priority_queue<Event> events_;
  uint64_t sequence_ = 0;
  uint64_t ids_ = 0;
  Nanos now_ = 0;
  PoolResult result_;
};

bool Positive(double value) { return std::isfinite(value) && value > 0; }

std::string Fault(const PoolScenario& scenario) {
  if (scenario.models.empty() || scenario.nodes.empty()) return "there is no GPU";
  for (const GpuModel& model : scenario.models) {
    if (!Positive(model.sms) || !Positive(model.sm_speed) || !Positive(model.memory_bandwidth) ||
        !Positive(model.copy_bandwidth) || model.kernels_max == 0 || model.copy_engines == 0) {
      return "GPU model " + model.name + ": every number must be above 0";
    }
  }
  for (const ProgramModel& program : scenario.programs) {
    if (program.cycles == 0 || program.threads == 0 || program.threads > kThreadsMax ||
        program.cpu < 0 || program.kernel < 0 || !Positive(program.sms) ||
        !Positive(program.compute) || !std::isfinite(program.bandwidth) || program.bandwidth < 0) {
      return "program " + program.name + ": a number is out of its range";
    }
    if (program.cpu == 0 && program.kernel == 0 && program.to_device == 0 && program.to_host == 0) {
      return "program " + program.name + " takes no time";
    }
  }
  if (!Positive(scenario.network_bandwidth) || scenario.round_trip < 0 ||
      scenario.context_switch < 0) {
    return "network or context switch: a number is out of its range";
  }
  if (!(scenario.bandwidth_error >= 0 && scenario.bandwidth_error <= 1)) {
    return "bandwidth_error: from 0 to 1";
  }
  if (scenario.batches_in_flight == 0) return "batches_in_flight: at least 1";
  for (const auto& node : scenario.nodes) {
    if (node.size() > placement::kGpusOfNodeMax) return "a node has too many GPUs";
  }
  for (const StreamModel& stream : scenario.streams) {
    if (stream.program >= scenario.programs.size()) return "a stream of an unknown program";
    if (!(stream.gap_seconds >= 0) || stream.weight == 0 || stream.start < 0 || scenario.stop < 0) {
      return "a stream: a number is out of its range";
    }
  }
  if (scenario.scheduler != "none" && schedule::PolicyPromise(scenario.scheduler).empty()) {
    return "there is no scheduler " + scenario.scheduler;
  }
  return "";
}

}  // namespace

KernelOnModel KernelOn(const PoolScenario& scenario, const ProgramModel& program,
                       const GpuModel& model) {
  const GpuModel& first = scenario.models[0];
  const auto kernel = static_cast<double>(program.kernel);
  if (kernel == 0) return {};
  const double sms_there = std::min(program.sms, first.sms);
  const double sms = std::min(program.sms, model.sms);
  const double clock = first.sm_speed / model.sm_speed;
  // Whichever takes longest: issuing on fewer SMs, touching memory, or what no number of SMs helps.
  const double issuing = kernel * program.compute * (sms_there / sms) * clock;
  const double touching = kernel * program.bandwidth / model.memory_bandwidth;
  const double least = kernel * clock;
  const double duration = std::max({issuing, touching, least});
  return {
      .duration = duration,
      .demand = {.sms = sms / model.sms * issuing / duration, .bandwidth = touching / duration}};
}

Nanos TimeAlone(const PoolScenario& scenario, const ProgramModel& program, const GpuModel& model) {
  const double copies =
      (static_cast<double>(program.to_device) + static_cast<double>(program.to_host)) /
      model.copy_bandwidth * kSecond;
  const double cycle =
      static_cast<double>(program.cpu) + copies + KernelOn(scenario, program, model).duration;
  const uint32_t threads = std::min(program.threads, program.cycles);
  // Those threads that have one cycle more than others are the last.
  return ToNanos(cycle * ((program.cycles + threads - 1) / threads));
}

PoolResult SimulatePool(const PoolScenario& scenario, placement::MapperRecorder* recorder,
                        std::string* error) {
  *error = Fault(scenario);
  if (!error->empty()) return {};
  std::unique_ptr<placement::Mapper> mapper = placement::Mapper::Make(scenario.placement);
  if (mapper == nullptr) {
    *error = "placement: there is no such policy, or `leave` is above `enter`";
    return {};
  }
  mapper->RecordTo(recorder);
  PoolSimulation simulation(scenario, std::move(mapper));
  simulation.Prepare();
  return simulation.Run();
}

}  // namespace consort::sim
