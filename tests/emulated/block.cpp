#include "emulated/block.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "emulated/cuda.h"

// What `extern __shared__` names in kernels: all of it is the same memory.
extern "C" {
constexpr int kSharedBytes = 227 << 10;
alignas(128) thread_local char emulated_shared_memory[kSharedBytes];
}
namespace fastconv {
#define SHARED_MEMORY(type, name) \
  extern thread_local type name[kSharedBytes / sizeof(type)] __attribute__((alias("emulated_shared_memory")))
SHARED_MEMORY(uint16_t, banded_filter);
SHARED_MEMORY(float, depthwise_any_smem);
SHARED_MEMORY(unsigned char, depthwise_sequence_smem);
SHARED_MEMORY(unsigned char, depthwise_smem);
SHARED_MEMORY(unsigned char, depthwise_stages);
SHARED_MEMORY(float, depthwise_sums);
SHARED_MEMORY(uint4, diagonal_rows);
SHARED_MEMORY(uint4, grouped_smem);
SHARED_MEMORY(uint4, mma_smem);
SHARED_MEMORY(uint4, norm_smem);
SHARED_MEMORY(uint4, pack_smem);
SHARED_MEMORY(uint4, pointwise_smem);
SHARED_MEMORY(uint4, quads_smem);
SHARED_MEMORY(uint4, embed_smem);
SHARED_MEMORY(uint4, reduce_smem);
SHARED_MEMORY(unsigned char, shared_bytes);
SHARED_MEMORY(uint8_t, smem_raw);
SHARED_MEMORY(uint4, stem_smem);
#undef SHARED_MEMORY
}  // namespace fastconv

namespace fastconv::emulated {

Index thread_index, block_index, block_size, grid_size;

Machine& machine() {
  static Machine machine;
  return machine;
}

namespace {

constexpr uint32_t kFirstAddress = 1 << 10;  // null is not shared memory's
constexpr int kPoison = 0xff;                // NaN in every type
constexpr int kUnitBytes = 2, kNobody = -1;

using Work = std::function<void()>;
using Groups = std::deque<std::vector<Work>>;  // the last one not yet committed

// All groups but the last `pending` of those that are committed.
void finish(Groups& groups, int pending) {
  while (static_cast<int>(groups.size()) - 1 > pending) {
    for (const Work& work : groups.front()) work();
    groups.pop_front();
  }
}
bool is_empty(const Groups& groups) {
  return std::all_of(groups.begin(), groups.end(), [](const auto& group) { return group.empty(); });
}

// Between pages that nobody may touch.
class Stack {
 public:
  Stack()
      : memory_(
            mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED || mprotect(memory_, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  }
  Stack(Stack&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  ~Stack() {
    if (memory_ != nullptr) munmap(memory_, kStackBytes);
  }
  stack_t get() const { return {.ss_sp = memory_, .ss_flags = 0, .ss_size = kStackBytes}; }

 private:
  static constexpr size_t kStackBytes = 128 << 10, kGuardBytes = 4 << 10;
  void* memory_;
};

struct Thread {
  ucontext_t begin{};
  jmp_buf place;  // once it has begun
  bool begun = false, ended = false;
  Stack stack;
  std::string waits_at;            // or waited last
  std::vector<uint32_t> unfenced;  // units of shared memory that it has written
  Groups copies, stores;
};

struct Meeting {
  const char* operation = nullptr;
  std::vector<void*> brought;  // by thread
  int come = 0;
};

struct NamedBarrier {
  int threads = 0, come = 0;
  std::vector<int> waiting;
};

struct Mbarrier {
  uint32_t arrivals, missing;
  int64_t bytes = 0;  // expected and not there yet
  uint32_t phase = 0;
  std::vector<int> waiting;
};

struct Block {
  uint32_t index = 0;
  int alive = 0;  // threads
  std::vector<char> own_memory;
  char* memory = nullptr;
  std::vector<Meeting> warps, warpgroups;
  Meeting all;
  std::array<NamedBarrier, 16> named;
  std::map<uint32_t, Mbarrier> mbarriers;
  std::vector<int> writers;      // of units of shared memory, who has not fenced what it wrote; or kNobody
  std::vector<Groups> products;  // by warpgroup
};

// Threads that have not ended meet.
struct Rendezvous {
  int alive = 0;
  std::vector<int> waiting;
};

struct EngineCopy {
  int block;
  uint32_t barrier, bytes;
  Work copy;
};

// Blocks that run together.
struct Team {
  int block_threads = 0, smem_bytes = 0, cluster = 1, current = 0, polls = 0;
  bool engine = false;  // copies
  std::vector<Block> blocks;
  std::deque<int> ready;
  std::vector<EngineCopy> copies;
  std::vector<Rendezvous> clusters;
  uint32_t grid_word = 0;
  std::exception_ptr error;
  jmp_buf scheduler;
  const std::function<void()>* body = nullptr;
};

Team team;
std::vector<Thread> threads;  // of all blocks; stacks are used again

bool in_haste() { return machine().order == Order::kHaste; }
Thread& current() { return threads[team.current]; }
int block_of(int thread) { return thread / team.block_threads; }
int my_number() { return team.current % team.block_threads; }
Block& my_block() { return team.blocks[block_of(team.current)]; }

void select(int thread) {
  team.current = thread;
  thread_index.x = static_cast<uint32_t>(my_number());
  block_index.x = my_block().index;
}

// Returns when `from` is resumed. Not swapcontext(), which asks the system for the signal mask each time.
void resume(int thread, jmp_buf& from) {
  if (_setjmp(from) != 0) return;
  select(thread);
  Thread& next = threads[thread];
  if (next.begun) _longjmp(next.place, 1);
  next.begun = true;
  setcontext(&next.begin);
}

void wake(std::vector<int>& waiting) {
  team.polls = 0;
  for (const int thread : waiting) team.ready.push_back(thread);
  waiting.clear();
}

void complete_if_due(Mbarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
  wake(barrier.waiting);
}

Mbarrier& mbarrier_of(Block& block, uint32_t address) {
  const auto found = block.mbarriers.find(address);
  if (found == block.mbarriers.end()) fail("no barrier at " + std::to_string(address - kFirstAddress));
  return found->second;
}

void make(const EngineCopy& copy) {
  const int before = team.current;
  select(copy.block * team.block_threads);  // whose shared memory it is
  team.engine = true;
  copy.copy();
  team.engine = false;
  Mbarrier& barrier = mbarrier_of(my_block(), copy.barrier);
  barrier.bytes -= copy.bytes;
  complete_if_due(barrier);
  select(before);
}

// The last first: a kernel may not rely on their order.
bool make_a_copy() {
  if (team.copies.empty()) return false;
  const EngineCopy copy = std::move(team.copies.back());
  team.copies.pop_back();
  team.polls = 0;
  make(copy);
  return true;
}

bool somebody_is_ready() {
  while (team.ready.empty() && make_a_copy()) {
  }
  return !team.ready.empty();
}

int take_ready() {
  const int thread = in_haste() ? team.ready.back() : team.ready.front();
  in_haste() ? team.ready.pop_back() : team.ready.pop_front();
  return thread;
}

// The others go on until somebody wakes this thread.
void suspend() {
  if (!somebody_is_ready()) {
    fail("waits at " + current().waits_at + " for threads that have ended or wait elsewhere");
  }
  jmp_buf& place = current().place;
  resume(take_ready(), place);
}

void leave(Rendezvous& meeting) {
  if (static_cast<int>(meeting.waiting.size()) == --meeting.alive) wake(meeting.waiting);
}
Rendezvous& my_cluster() { return team.clusters[block_of(team.current) / team.cluster]; }

void run_thread() {
  try {
    (*team.body)();
    if (!is_empty(current().stores)) fail("ended before TMA has read what it stores");
    auto of_mine = [](const EngineCopy& copy) { return copy.block == block_of(team.current); };
    if (my_block().alive == 1 && std::any_of(team.copies.begin(), team.copies.end(), of_mine)) {
      fail("its block ends with copies on their way");
    }
  } catch (...) {
    team.error = std::current_exception();
  }
  current().ended = true;
  team.polls = 0;
  --my_block().alive;
  leave(my_cluster());
  _longjmp(team.scheduler, 1);
}

void start(int thread) {
  Thread& it = threads[thread];
  it.begun = it.ended = false;
  it.unfenced.clear();
  it.copies.assign(1, {});
  it.stores.assign(1, {});
  getcontext(&it.begin);
  it.begin.uc_stack = it.stack.get();
  it.begin.uc_link = nullptr;
  makecontext(&it.begin, run_thread, 0);
  team.ready.push_back(thread);
}

void begin(Block& block, uint32_t index, bool alone) {
  block.index = index;
  block.alive = team.block_threads;
  block.own_memory.assign(alone ? 0 : team.smem_bytes, static_cast<char>(kPoison));
  block.memory = alone ? emulated_shared_memory : block.own_memory.data();
  if (alone) std::memset(emulated_shared_memory, kPoison, team.smem_bytes);
  block.all = {nullptr, std::vector<void*>(team.block_threads)};
  block.warps.assign((team.block_threads + 31) / 32, {nullptr, std::vector<void*>(32)});
  block.warpgroups.assign(team.block_threads / 128, {nullptr, std::vector<void*>(128)});
  block.named.fill({});
  block.mbarriers.clear();
  block.writers.assign(team.smem_bytes / kUnitBytes, kNobody);
  block.products.assign(block.warpgroups.size(), Groups(1));
}

void run_team(int64_t first, int count) {
  team.blocks.resize(count);
  team.ready.clear();
  team.copies.clear();
  team.grid_word = 0;
  team.error = nullptr;
  team.engine = false;
  team.polls = 0;
  const int all = count * team.block_threads;
  team.clusters.assign(count / team.cluster, {team.cluster * team.block_threads, {}});
  if (threads.size() < static_cast<size_t>(all)) threads.resize(all);
  for (int i = 0; i < count; ++i) begin(team.blocks[i], static_cast<uint32_t>(first + i), count == 1);
  for (int i = 0; i < all; ++i) start(i);
  while (team.error == nullptr && somebody_is_ready()) resume(take_ready(), team.scheduler);
  if (team.error != nullptr) std::rethrow_exception(team.error);
  for (int i = 0; i < all; ++i) {
    select(i);
    if (!threads[i].ended) fail("waits at " + threads[i].waits_at + " for threads that have ended");
  }
  for (const Block& block : team.blocks) {
    for (const Groups& groups : block.products) {
      if (!is_empty(groups)) fail("a block ended before its products");
    }
    for (const auto& [address, barrier] : block.mbarriers) {
      if (barrier.bytes != 0) fail("a block ended before bytes that a barrier of its expects");
    }
  }
}

}  // namespace

void fail(const std::string& what) {
  const std::string who = team.engine ? "TMA" : "thread " + std::to_string(thread_index.x);
  throw std::logic_error(who + " of block " + std::to_string(block_index.x) + ": " + what);
}

void run_grid(const char* kernel, const Grid& grid, const std::function<void()>& thread) {
  if (grid.smem_bytes > kSharedBytes) throw std::logic_error("more shared memory than a block may have");
  if (grid.blocks % grid.cluster != 0) throw std::logic_error("a part of a cluster");
  team.block_threads = grid.threads, team.smem_bytes = grid.smem_bytes, team.cluster = grid.cluster;
  team.body = &thread;
  block_size.x = static_cast<uint32_t>(grid.threads), grid_size.x = static_cast<uint32_t>(grid.blocks);
  std::memset(emulated_shared_memory, kPoison, kSharedBytes);
  try {
    const int64_t together = grid.cooperative ? grid.blocks : grid.cluster;
    for (int64_t i = 0; i < grid.blocks; i += together) run_team(i, static_cast<int>(together));
    const auto poisoned = [](char byte) { return byte == static_cast<char>(kPoison); };
    if (!std::all_of(emulated_shared_memory + grid.smem_bytes, emulated_shared_memory + kSharedBytes, poisoned)) {
      fail("someone wrote beyond the shared memory of a block");
    }
  } catch (const std::logic_error& error) {
    throw std::logic_error(std::string(kernel) + ", " + error.what());
  }
}

void meet(Scope scope, const char* operation, void* mine, const Act& act) {
  Block& block = my_block();
  const int number = my_number(), size = scope == Scope::kWarp        ? 32
                                         : scope == Scope::kWarpgroup ? 128
                                                                      : team.block_threads;
  Meeting& warp = block.warps[number / 32];
  if (scope != Scope::kWarp && warp.come > 0) {
    fail(std::string("at ") + operation + ", lanes of its warp at " + warp.operation);
  }
  Meeting& meeting = scope == Scope::kWarp        ? warp
                     : scope == Scope::kWarpgroup ? block.warpgroups[number / 128]
                                                  : block.all;
  if (meeting.come > 0 && std::strcmp(meeting.operation, operation) != 0) {
    fail(std::string("at ") + operation + ", others at " + meeting.operation);
  }
  meeting.operation = operation;
  current().waits_at = operation;
  meeting.brought[number % size] = mine;
  if (++meeting.come < static_cast<int>(meeting.brought.size())) return suspend();
  act(meeting.brought);
  meeting.come = 0;
  team.polls = 0;
  const int first = team.current - number % size;
  for (int i = first; i < first + size; ++i) {
    if (i != team.current) team.ready.push_back(i);
  }
}

namespace {

NamedBarrier& come_to(int barrier, int threads) {
  if (threads % 32 != 0) fail("a named barrier of a part of a warp");
  NamedBarrier& named = my_block().named.at(barrier);
  if (named.come > 0 && named.threads != threads)
    fail("others expect another number at barrier " + std::to_string(barrier));
  named.threads = threads;
  ++named.come;
  return named;
}
bool is_complete(NamedBarrier& named) {
  if (named.come < named.threads) return false;
  named.come = 0;
  wake(named.waiting);
  return true;
}

}  // namespace

void barrier_arrive(int barrier, int threads) { is_complete(come_to(barrier, threads)); }
void barrier_sync(int barrier, int threads) {
  NamedBarrier& named = come_to(barrier, threads);
  current().waits_at = "barrier " + std::to_string(barrier) + " of " + std::to_string(threads) + " threads";
  if (is_complete(named)) return;
  named.waiting.push_back(team.current);
  suspend();
}

void cluster_sync() {
  current().waits_at = "cluster_sync";
  Rendezvous& meeting = my_cluster();
  if (static_cast<int>(meeting.waiting.size()) + 1 == meeting.alive) return wake(meeting.waiting);
  meeting.waiting.push_back(team.current);
  suspend();
}
int cluster_rank() { return block_of(team.current) % team.cluster; }

void poll(const char* operation) {
  current().waits_at = operation;
  if (++team.polls > 4 * static_cast<int>(threads.size()) && !make_a_copy()) {
    fail("waits at " + current().waits_at + " for what nobody writes");
  }
  in_haste() ? team.ready.push_front(team.current) : team.ready.push_back(team.current);
  suspend();
}

uint32_t* grid_word() { return &team.grid_word; }

void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  shared(barrier, 8);
  if (!my_block().mbarriers.try_emplace(barrier, Mbarrier{arrivals, arrivals}).second)
    fail("a barrier is initialised twice");
}
void mbarrier_invalidate(uint32_t barrier) {
  if (!mbarrier_of(my_block(), barrier).waiting.empty()) fail("invalidates a barrier that others wait at");
  my_block().mbarriers.erase(barrier);
}
void mbarrier_expect(uint32_t barrier, uint32_t bytes) { mbarrier_of(my_block(), barrier).bytes += bytes; }
void mbarrier_arrive(uint32_t barrier) {
  Mbarrier& it = mbarrier_of(my_block(), barrier);
  if (it.missing == 0) fail("one arrival too many at barrier " + std::to_string(barrier - kFirstAddress));
  --it.missing;
  complete_if_due(it);
}
void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (mbarrier_of(my_block(), barrier).phase % 2 == parity) {
    current().waits_at = "barrier at " + std::to_string(barrier - kFirstAddress) + ", parity " + std::to_string(parity);
    mbarrier_of(my_block(), barrier).waiting.push_back(team.current);
    suspend();
  }
}

char* shared(uint32_t address, int bytes, int rank) {
  const int64_t at = int64_t{address} - kFirstAddress;
  if (at < 0 || at + bytes > team.smem_bytes || at % bytes != 0) {
    fail("no " + std::to_string(bytes) + " aligned bytes of shared memory at " + std::to_string(at) + ", it has " +
         std::to_string(team.smem_bytes));
  }
  if (rank < 0) return my_block().memory + at;
  const Block& other = team.blocks.at(block_of(team.current) / team.cluster * team.cluster + rank);
  if (other.alive == 0) fail("shared memory of a block that has ended");
  return other.memory + at;
}

static void spare_barriers(uint32_t address, int bytes) {
  const auto after = my_block().mbarriers.lower_bound(address - 7);
  if (after != my_block().mbarriers.end() && after->first < address + bytes) fail("writes over a barrier");
}
char* shared_for_write(uint32_t address, int bytes) {
  char* const at = shared(address, bytes);
  spare_barriers(address, bytes);
  const uint32_t first = (address - kFirstAddress) / kUnitBytes;
  for (uint32_t unit = first; unit < first + bytes / kUnitBytes; ++unit) {
    my_block().writers[unit] = team.current;
    current().unfenced.push_back(unit);
  }
  return at;
}
bool is_fenced(uint32_t address, int bytes) {
  const uint32_t first = (address - kFirstAddress) / kUnitBytes;
  const int* const writers = &my_block().writers.at(first);
  return std::all_of(writers, writers + bytes / kUnitBytes, [](int writer) { return writer == kNobody; });
}
char* shared_for_engine(uint32_t address, int bytes) {
  char* const at = shared(address, bytes);
  spare_barriers(address, bytes);
  if (!is_fenced(address, bytes)) fail("TMA touches what a thread has written and not fenced");
  return at;
}
void fence_shared() {
  for (const uint32_t unit : current().unfenced) {
    if (my_block().writers[unit] == team.current) my_block().writers[unit] = kNobody;
  }
  current().unfenced.clear();
}

char* shared_memory() { return my_block().memory; }
uint32_t shared_address(const void* pointer) {
  int64_t at = static_cast<const char*>(pointer) - emulated_shared_memory;
  if (at != 0) at = static_cast<const char*>(pointer) - my_block().memory;  // only the name is every block's
  if (at < 0 || at > team.smem_bytes) fail("not a pointer to dynamic shared memory");
  return static_cast<uint32_t>(at) + kFirstAddress;
}

const void* global(const void* pointer, int bytes) {
  const auto* from = static_cast<const char*>(pointer);
  if (reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fail("device memory is accessed at an address that is not aligned");
  for (const auto& memory : machine().memory) {
    if (from >= memory.data() && from + bytes <= memory.data() + memory.size()) return pointer;
  }
  fail("device memory is accessed where there is no tensor");
}

void async_copy(uint32_t to, const void* from, int bytes) {
  char* const target = shared(to, bytes);
  if (from != nullptr) global(from, bytes);
  shared_for_write(to, bytes);
  const Work copy = [=] { from != nullptr ? std::memcpy(target, from, bytes) : std::memset(target, 0, bytes); };
  in_haste() ? copy() : current().copies.back().push_back(copy);
}
void async_copy_commit() { current().copies.emplace_back(); }
void async_copy_wait(int pending) { finish(current().copies, pending); }

void engine_copy(uint32_t barrier, uint32_t bytes, std::function<void()> copy) {
  team.copies.push_back({block_of(team.current), barrier, bytes, std::move(copy)});
  if (in_haste()) make_a_copy();
}

void engine_store(std::function<void()> store) { current().stores.back().push_back(std::move(store)); }
void engine_store_commit() { current().stores.emplace_back(); }
void engine_store_wait(int pending) { finish(current().stores, pending); }

void warpgroup_multiply(std::function<void()> multiply) {
  if (in_haste()) return multiply();
  my_block().products[my_number() / 128].back().push_back(std::move(multiply));
}
void warpgroup_commit() {
  meet(Scope::kWarpgroup, "wgmma_commit", nullptr,
       [](const auto&) { my_block().products[my_number() / 128].emplace_back(); });
}
void warpgroup_wait(int pending) {
  meet(Scope::kWarpgroup, "wgmma_wait", nullptr,
       [=](const auto&) { finish(my_block().products[my_number() / 128], pending); });
}

}  // namespace fastconv::emulated
