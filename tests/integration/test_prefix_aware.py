"""prefix_aware: each conversation goes on where its prompts are cached, and both replicas have some."""

from concurrent.futures import ThreadPoolExecutor

import openai
from cluster import Cluster, wait_until

CONVERSATIONS, TURNS = 6, 4
REPLICAS = ("r0", "r1")
FLAGS = ("--replicas", "2", "--tp", "1", "--policy", "prefix_aware", "--kv-cache-memory", "512MiB")


def of_replicas(cluster, metric):
    page = cluster.metrics()
    return [sum(value for key, value in page.items() if key.split("{")[0] == metric and f'replica="{replica}"' in key)
            for replica in REPLICAS]


class Talk:
    """A conversation, which begins with a system prompt of its own."""

    def __init__(self, cluster, number):
        self.model, self.number = cluster.model_id, number
        self.client = openai.OpenAI(base_url=cluster.http + "/v1", api_key="none", max_retries=0, timeout=300)
        self.messages = [{"role": "system", "content": f"You are clerk {number}. " + f"Rule {number}: be brief. " * 30}]
        self.cached, self.prompts = [], []  # tokens a turn

    def turn(self):
        self.messages.append({"role": "user", "content": f"Question {len(self.messages)} for clerk {self.number}?"})
        answer = self.client.chat.completions.create(model=self.model, messages=self.messages, temperature=0,
                                                     max_completion_tokens=24)
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        self.prompts.append(answer.usage.prompt_tokens)
        self.cached.append(answer.usage.prompt_tokens_details.cached_tokens)


def test_conversations_stay_where_they_are_cached():
    with Cluster(*FLAGS) as c:
        talks = [Talk(c, number) for number in range(CONVERSATIONS)]
        known = 0
        for _ in range(TURNS):
            with ThreadPoolExecutor(CONVERSATIONS) as pool:
                list(pool.map(Talk.turn, talks))
            # The router is told of what was cached after the answers.
            wait_until(lambda: c.metric("flotilla_router_cache_index_pages") >= known + CONVERSATIONS, 30,
                       "the router knows of the new pages")
            known = c.metric("flotilla_router_cache_index_pages")
        for talk in talks:
            for turn in range(1, TURNS):  # nearly all that was asked and answered before
                assert talk.cached[turn] > 0.9 * talk.prompts[turn - 1], (talk.cached, talk.prompts)
        assert min(of_replicas(c, "flotilla_router_cache_index_pages")) > 10
        assert min(of_replicas(c, "flotilla_scheduler_cached_tokens_total")) > 500
        # It knew what the replicas found.
        prompts, cached = (sum(sum(getattr(talk, kind)) for talk in talks) for kind in ("prompts", "cached"))
        assert c.metric("flotilla_router_routed_prompt_tokens_total") == prompts
        assert 0.9 * cached <= c.metric("flotilla_router_routed_cached_tokens_total") <= cached
        assert c.metric("flotilla_router_cache_index_left_out_total") == 0


def test_an_index_that_is_full_is_counted():
    with Cluster(*FLAGS, "--router-flag=--max-cache-index-pages=5") as c:
        talk = Talk(c, 0)
        talk.turn()
        wait_until(lambda: c.metric("flotilla_router_cache_index_left_out_total") > 5, 30, "pages were left out")
        assert max(of_replicas(c, "flotilla_router_cache_index_pages")) == 5
        talk.turn()  # there is nothing wrong, only less is known
        assert len(talk.cached) == 2
