"""LlamaIndex: chat, and an index over our embeddings that answers by our model."""

from __future__ import annotations

from asked import EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, SEARCH, TEXTS, V1, tell
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model=MODEL,
    api_base=V1,
    api_key=KEY,
    is_chat_model=True,
    context_window=1024,
    temperature=0,
    max_tokens=MAX_TOKENS,
)
vectors = OpenAILikeEmbedding(model_name=EMBEDDING, api_base=V1, api_key=KEY)
question = [ChatMessage(role="user", content=QUESTION)]
index = VectorStoreIndex.from_documents(
    [Document(text=text) for text in TEXTS], embed_model=vectors
)
answer = index.as_query_engine(llm=model, similarity_top_k=1).query(SEARCH)
tell(
    text=model.chat(question).message.content,
    streamed="".join(part.delta or "" for part in model.stream_chat(question)),
    nearest=index.as_retriever(similarity_top_k=1).retrieve(SEARCH)[0].text,
    answer=str(answer),
    sources=[node.text for node in answer.source_nodes],
)
